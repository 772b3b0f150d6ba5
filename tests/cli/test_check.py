"""`graphdoctor check` on a repository of three models, before and after a change, end to end."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from tests.reporters.test_check_formats import SCHEMA
from tests.support.checking import CHANGE, REPOSITORY, commit, git, git_repository, run, write

FORMATS = ("full", "concise", "json", "sarif", "github", "gitlab", "junit", "markdown", "html")
LINE = "models/layers.py:17"  # of the change's hazard
TINY = """\
import torch

def graphdoctor_target():
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)
"""


@dataclass(frozen=True)
class Changed:
    """What a check said of the change, in each format."""

    folder: Path
    code: int
    out: str
    err: str
    reports: dict[str, str]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """The sample repository at a path that is awkward, its baseline made for this torch."""
    folder = git_repository(tmp_path_factory.mktemp("check") / "mödel repo")
    done = run("baseline", "--allow-growth", cwd=folder)
    assert done.returncode == 0, done.stderr
    commit(folder, "baseline")
    return folder


@pytest.fixture(scope="module")
def unchanged(repository: Path, tmp_path_factory) -> tuple[CompletedProcess[str], Path]:
    """What a check said of it, and its JSON."""
    path = tmp_path_factory.mktemp("unchanged") / "before.json"
    report = f"--report=json={path}"
    done = run("check", "--no-cache", "--output-format=concise", report, cwd=repository)
    return done, path


@pytest.fixture(scope="module")
def changed(repository: Path, tmp_path_factory) -> Changed:
    """The same with the change of a pull request, checked once."""
    folder = tmp_path_factory.mktemp("changed") / "mödel repo"
    shutil.copytree(repository, folder)
    shutil.copytree(CHANGE, folder, dirs_exist_ok=True)
    reports = [f"--report={name}=report of {name}" for name in FORMATS]
    done = run("check", *reports, cwd=folder)
    texts = {name: (folder / f"report of {name}").read_text(encoding="utf-8") for name in FORMATS}
    return Changed(folder, done.returncode, done.stdout, done.stderr, texts)


def test_baseline_is_the_one_in_the_repository(repository: Path) -> None:
    """The findings; the figures depend on which torch it is."""

    def entries(folder: Path) -> list[str]:
        text = (folder / ".graphdoctor-baseline.json").read_text(encoding="utf-8")
        return [line for line in text.splitlines() if '"rule": "GD1' in line or '"GD2' in line]

    assert entries(repository) == entries(REPOSITORY)
    assert len(entries(repository)) == 2


def test_unchanged_repository_passes(unchanged: tuple[CompletedProcess[str], Path]) -> None:
    done, _ = unchanged
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("passed: nothing new in 3 targets")


def test_change_fails_and_what_is_new_comes_first(changed: Changed) -> None:
    assert (changed.code, changed.err) == (1, "")
    assert LINE in changed.out and "in decoder, encoder" in changed.out
    assert changed.out.index(LINE) < changed.out.index("    With  ")
    assert "worse than the baseline" not in changed.out  # one cause, one error
    assert "models/trainer.py GD204 optimizer.step()" in changed.out  # mended: to be dropped


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_new_finding_and_no_path_of_this_machine(
    name: str, changed: Changed
) -> None:
    text = changed.reports[name]
    assert "GD107" in text
    assert "layers.py" in text
    assert str(changed.folder) not in text and "mödel repo" not in text


def test_sarif_of_the_change_is_valid(changed: Changed) -> None:
    document = json.loads(changed.reports["sarif"])
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    (new,) = [
        one
        for one in document["runs"][0]["results"]
        if one["level"] == "error" and "suppressions" not in one
    ]
    assert new["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/layers.py"
    assert new["properties"]["targets"] == ["decoder", "encoder"]


def test_github_annotates_the_line(changed: Changed) -> None:
    assert (
        "::error file=models/layers.py,line=17,endLine=17,col=12,endColumn=31,title=GD107"
        in (changed.reports["github"])
    )


def test_junit_of_the_change_has_a_suite_for_each_target(changed: Changed) -> None:
    root = ET.fromstring(changed.reports["junit"])
    failures = {suite.get("name"): int(suite.get("failures", "")) for suite in root}
    assert set(failures) == {"decoder", "encoder", "trainer", "baseline"}
    assert failures["trainer"] == 0 and failures["decoder"] > 0


def test_diff_of_before_and_after_names_what_changed(
    changed: Changed, unchanged: tuple[CompletedProcess[str], Path]
) -> None:
    _, before = unchanged
    page = run("diff", str(before), "report of json", cwd=changed.folder)
    assert page.returncode == 0
    assert "safe -> unsafe" in page.stdout and LINE in page.stdout
    text = run(
        "diff", str(before), "report of json", "--output-format=markdown", cwd=changed.folder
    ).stdout
    assert text.startswith("<!-- graphdoctor diff -->") and "| syncs | 0 | 3 (worse) |" in text


def test_baseline_refuses_to_grow_and_prunes(changed: Changed, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(changed.folder, folder)
    path = folder / ".graphdoctor-baseline.json"
    before = path.read_text(encoding="utf-8")
    refused = run("baseline", cwd=folder)
    assert refused.returncode == 1 and "hidden.sum().item()" in refused.stdout
    assert path.read_text(encoding="utf-8") == before
    assert run("baseline", "--prune", cwd=folder).returncode == 0
    gone = {line for line in before.splitlines() if line not in path.read_text(encoding="utf-8")}
    assert any("GD204" in line for line in gone)
    assert not any("GD107" in line for line in gone)


def test_three_runs_are_equal_to_the_byte(changed: Changed, tmp_path_factory) -> None:
    """With other hash seeds, from both folders of clones, and whatever else is written."""
    outputs = {(changed.out, changed.err, changed.reports["json"])}
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"clone{number}") / "x"
        shutil.copytree(changed.folder, folder)
        where = folder / "models" if number % 2 else folder
        report = folder / "report.json"
        done = run("check", f"--report=json={report}", cwd=where, PYTHONHASHSEED=str(number))
        assert done.returncode == 1
        outputs.add((done.stdout, done.stderr, report.read_text(encoding="utf-8")))
    assert len(outputs) == 1


def test_github_step_summary_is_written(repository: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    done = run(
        "check",
        "decoder",
        "--output-format=github",
        cwd=repository,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 0
    assert summary.read_text(encoding="utf-8").startswith("<!-- graphdoctor -->")


def test_folder_without_settings_is_searched(tmp_path: Path) -> None:
    write(tmp_path, {"nets/tiny.py": TINY, "nets/helper.py": "x = 1\n", "nets/broken.py": "def"})
    done = run("check", "nets", "--output-format=concise", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 target" in done.stdout


def test_shallow_clone_is_checked(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git("clone", "--quiet", "--depth=1", repository.as_uri(), str(clone), cwd=tmp_path)
    assert run("check", "decoder", cwd=clone).returncode == 0


def test_init_writes_settings_that_check_takes(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pyproject.toml": '[project]\nname = "x"  # mine\n',
            "nets/tiny.py": TINY,
            "nets/lone.py": "import torch\nclass Net(torch.nn.Module):\n    def forward(s, x): ...\n",
            ".venv/pyvenv.cfg": "",
            ".venv/other.py": TINY,
        },
    )
    done = run("init", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nets/tiny.py" in done.stdout and "nets/lone.py: Net" in done.stdout
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert text.startswith('[project]\nname = "x"  # mine\n\n[tool.graphdoctor]\n')
    assert text.count("entry = ") == 1
    assert run("check", cwd=tmp_path).returncode == 0
    again = run("init", cwd=tmp_path)
    assert again.returncode == 2 and "has [tool.graphdoctor] already" in again.stderr


def test_init_keeps_the_ends_of_lines_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, {"nets/tiny.py": TINY})
    (tmp_path / "pyproject.toml").write_bytes(b'[project]\r\nname = "x"\r\n')
    assert run("init", cwd=tmp_path).returncode == 0
    content = (tmp_path / "pyproject.toml").read_bytes()
    assert content.startswith(b'[project]\r\nname = "x"\r\n\r\n[tool.graphdoctor]\r\n')
    assert content.count(b"\n") == content.count(b"\r\n")
