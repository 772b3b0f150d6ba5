"""The places where checks live: the pre-commit hook, the GitHub Action and the GitLab job, really run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import warm
from tests.support.checking import CHANGE, commit, git, git_repository, run

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = git_repository(tmp_path_factory.mktemp("hooks") / "repo")
    assert run("baseline", "--allow-growth", cwd=folder).returncode == 0
    commit(folder, "baseline")
    return folder


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`graphdoctor` and `python` as commands of this environment, and a place for more."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder / "graphdoctor", f'exec {shlex.join(warm.command(warm.CLI))} "$@"')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash -e\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def changed(repository: Path, folder: Path) -> Path:
    shutil.copytree(repository, folder)
    shutil.copytree(CHANGE, folder, dirs_exist_ok=True)
    return folder


def test_pre_commit_runs_the_hook(repository: Path, tmp_path: Path, on_path: Path) -> None:
    """`try-repo` takes the hook from a repository, as a user's configuration would."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    git("init", "--quiet", cwd=hooks)
    commit(hooks, "hooks")

    def try_repo(folder: Path) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "pre_commit", "try-repo", str(hooks), "graphdoctor")
        return subprocess.run(
            [*command, "--all-files"],
            cwd=folder,
            env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )

    passed = try_repo(repository)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert re.search(r"graphdoctor check\.+Passed", passed.stdout)
    failed = try_repo(changed(repository, tmp_path / "changed"))
    assert failed.returncode == 1
    assert "models/layers.py:17" in failed.stdout


def shell_steps() -> list[dict[str, object]]:
    return [step for step in ACTION["runs"]["steps"] if "run" in step]


def run_step(
    step: dict[str, object], cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """As a runner does: the script in a file, run by its bash."""
    path = Path(variables["RUNNER_TEMP"]) / "step.sh"
    path.write_text(str(step["run"]), encoding="utf-8")
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(path)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def check_step(
    cwd: Path, folder: Path, *, paths: str = "", changed: str = ""
) -> tuple[int, str, dict[str, str]]:
    """The exit code, the log and the outputs of the step that checks."""
    for name in ("output", "summary"):
        (folder / name).touch()
    python = folder / "python"
    script(
        python,
        f'[ "$1 $2" = "-m graphdoctor" ]; exec {shlex.join(warm.command(warm.CLI))} "${{@:3}}"',
    )
    done = run_step(
        shell_steps()[0],
        cwd,
        RUNNER_TEMP=str(folder),
        GITHUB_OUTPUT=str(folder / "output"),
        GITHUB_STEP_SUMMARY=str(folder / "summary"),
        GRAPHDOCTOR_PATHS=paths,
        GRAPHDOCTOR_CHANGED=changed,
        GRAPHDOCTOR_PYTHON=str(python),
    )
    lines = (folder / "output").read_text(encoding="utf-8").splitlines()
    return done.returncode, done.stdout + done.stderr, dict(line.split("=", 1) for line in lines)


def test_action_fails_on_a_change_and_leaves_everything_to_upload(
    repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runner temp"
    folder.mkdir()
    code, log, outputs = check_step(changed(repository, tmp_path / "changed"), folder)
    assert code == 1
    assert "::error file=models/layers.py,line=17," in log
    assert outputs["has-sarif"] == "true"
    assert Path(outputs["sarif-file"]).is_file() and Path(outputs["markdown-file"]).is_file()
    assert (folder / "summary").read_text(encoding="utf-8").startswith("<!-- graphdoctor -->")
    again, _, outputs = check_step(repository, folder, paths="nowhere")
    assert again == 2 and not Path(outputs["sarif-file"]).exists()  # none of the check before


def test_action_takes_paths_a_line_each_and_obeys_none(repository: Path, tmp_path: Path) -> None:
    hostile = "$(touch pwned)\n`touch pwned`; touch pwned\n--isolated"
    code, log, outputs = check_step(repository, tmp_path, paths=hostile)
    assert code == 2 and "has-sarif" not in outputs
    assert not (repository / "pwned").exists()
    assert "$(touch pwned) is not a file" in log
    code, log, _ = check_step(repository, tmp_path, paths="decoder\n\nmodels/trainer.py\n")
    assert code == 0, log
    assert "2 targets" in log


def test_no_input_of_the_action_is_written_into_a_script() -> None:
    for step in shell_steps():
        assert "${{" not in str(step["run"])


def test_action_takes_only_what_a_change_touches(repository: Path, tmp_path: Path) -> None:
    code, log, outputs = check_step(repository, tmp_path, changed="HEAD")
    assert code == 0, log
    assert "0 of 3 targets touched by 0 changed files since HEAD" in log
    assert outputs["has-sarif"] == "true"


def step_with(what: str) -> dict[str, object]:
    """The step that has an id, or uses an action, of that name."""
    return next(
        step
        for step in ACTION["runs"]["steps"]
        if step.get("id") == what or what in step.get("uses", "")
    )


def is_run(step: dict[str, object], known: dict[str, object]) -> bool:
    """What GitHub makes of a step's `if`: names that are not known are empty."""
    text = str(step["if"]).replace("always()", "True").replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    names = r"\b(?:github|inputs|steps)\.[\w.-]+"
    return bool(eval(re.sub(names, lambda found: repr(known.get(found.group(), "")), text)))


OWN = {
    "github.event_name": "pull_request",
    "github.repository": "me/mine",
    "github.event.pull_request.head.repo.full_name": "me/mine",
    "steps.check.outputs.has-sarif": "true",
    "inputs.sarif": "auto",
    "inputs.comment": "true",
}
FORK = OWN | {"github.event.pull_request.head.repo.full_name": "you/mine"}
GONE = OWN | {"github.event.pull_request.head.repo.full_name": ""}  # a fork that was deleted
PUSH = OWN | {"github.event_name": "push", "github.event.pull_request.head.repo.full_name": ""}
PRIVATE = OWN | {"github.event.repository.private": True}


@pytest.mark.parametrize(
    ("known", "uploads", "comments"),
    [
        (OWN, True, True),
        (OWN | {"inputs.sarif": "false", "inputs.comment": "false"}, False, False),
        (OWN | {"steps.check.outputs.has-sarif": ""}, False, True),
        (FORK, False, False),
        (FORK | {"inputs.sarif": "true"}, False, False),
        (GONE, False, False),
        (PUSH, True, False),
        (PRIVATE, False, True),
        (PRIVATE | {"inputs.sarif": "true"}, True, True),
    ],
)
def test_action_uploads_and_comments_where_its_token_may(
    known: dict[str, object], uploads: bool, comments: bool
) -> None:
    assert ACTION["inputs"]["sarif"]["default"] == "auto"
    assert is_run(step_with("upload-sarif"), known) is uploads
    assert is_run(step_with("comment"), known) is comments


def test_action_uploads_after_a_failure_and_fails_for_no_upload() -> None:
    for name in ("upload", "comment"):
        step = step_with(name)
        assert str(step["if"]).startswith("always()")
        assert step["continue-on-error"] is True
        failed = f"steps.{name}.outcome == 'failure'"
        said = [one for one in shell_steps() if failed in str(one.get("if"))]
        assert len(said) == 1 and "::warning " in str(said[0]["run"])


@pytest.mark.parametrize("number", [2, 3])
def test_action_s_warnings_are_one_line(number: int, tmp_path: Path) -> None:
    done = run_step(shell_steps()[number], tmp_path, RUNNER_TEMP=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("::warning title=graphdoctor::") and "permission" in line


@pytest.mark.parametrize(("known", "method"), [("", "POST"), ("77\n78", "PATCH")])
def test_action_keeps_one_comment(known: str, method: str, tmp_path: Path, on_path: Path) -> None:
    """With a stand-in for gh that knows the comments of the pull request, and writes calls down."""
    calls = tmp_path / "calls"
    script(
        on_path / "gh",
        f'echo "$GH_HOST $GRAPHDOCTOR_MARKER $@" >> "{calls}"\nif [[ "$*" == *--jq* ]]; then printf "%s" "{known}"; fi',
    )
    (tmp_path / "m.md").write_text("<!-- graphdoctor packages/a -->\nx", encoding="utf-8")
    done = run_step(
        shell_steps()[1],
        tmp_path,
        RUNNER_TEMP=str(tmp_path),
        GITHUB_REPOSITORY="me/mine",
        GITHUB_SERVER_URL="https://git.example",
        GRAPHDOCTOR_PULL_REQUEST="5",
        GRAPHDOCTOR_MARKDOWN=str(tmp_path / "m.md"),
    )
    assert done.returncode == 0, done.stderr
    last = calls.read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("git.example <!-- graphdoctor packages/a -->")
    where = "repos/me/mine/issues/comments/77" if known else "repos/me/mine/issues/5/comments"
    assert f"--method {method} {where} " in last


def test_documented_gitlab_job_checks(repository: Path, on_path: Path, tmp_path: Path) -> None:
    """Its own lines, but for the installation."""
    text = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    block = next(b for b in re.findall(r"```yaml\n(.*?)```", text, re.S) if "codequality" in b)
    job = yaml.safe_load(block)["graphdoctor"]
    install, check = job["script"]
    assert install.startswith("pip install")
    folder = changed(repository, tmp_path / "changed")
    done = subprocess.run(["bash", "-ec", check], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 1
    for name in job["artifacts"]["reports"].values():
        assert (folder / name).is_file()


def test_documented_settings_and_marker_are_valid() -> None:
    import tomllib

    from graphdoctor.check.settings.settings import parse

    text = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```toml\n(.*?)```", text, re.S))
    settings = parse(tomllib.loads(block)["tool"]["graphdoctor"], where="docs")
    named = [target.name for target in settings.targets]
    assert named == ["models/decoder", "encoder-training", "models/ddp:make"]
    assert settings.targets[2].ranks == 2
