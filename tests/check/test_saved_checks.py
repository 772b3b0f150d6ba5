"""Shares of a check become the check of all their targets, and one that is missing is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphdoctor.check.gate import Outcome, gate, outcomes_of, read_checks
from graphdoctor.check.narrow import shard_of, share
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.check import Fault
from graphdoctor.values.errors import UsageError
from tests.cli.test_check import TINY
from tests.support.checking import finding, project, report, run, write

NAMES = ("c", "a", "d", "b")  # as the settings have them
SETTINGS = tuple(TargetSettings(name, f"models/{name}.py") for name in NAMES)
RESULTS = {
    "a": report(finding(3), finding(9, suppressed=None)),
    "b": Fault("crashed", 3, "it ended its process with exit code 7", 'File "b.py", line 6'),
    "c": report(),
    "d": report(finding(5, rule="GD302")),
}


def _saved(folder: Path, count: int) -> list[Path]:
    """A check of each share, as JSON."""
    paths = []
    for number in range(1, count + 1):
        shard = shard_of(SETTINGS, number, count)
        outcomes = [Outcome(one, RESULTS[one.name]) for one in share(SETTINGS, shard)]
        found = gate(outcomes, _baseline(), project(targets=SETTINGS), is_complete=False)
        text = written_as("json", found, Look())
        path = folder / f"{number}.json"
        table = json.loads(text) | {"shard": {"number": number, "count": count, "of": shard.of}}
        path.write_text(json.dumps(table), encoding="utf-8")
        paths.append(path)
    return paths


def _baseline():
    from graphdoctor.check.baseline import Entry, make

    return make([Entry("models/old.py", "GD101", "x.item()", "removed")], [])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["json", "sarif", "junit", "full", "markdown"])
def test_the_whole_is_what_one_check_gives(name: str, count: int, tmp_path: Path) -> None:
    """Also an entry of the baseline whose target is no more, which no share can know."""
    settings = project(targets=SETTINGS)
    all_at_once = [Outcome(one, RESULTS[one.name]) for one in SETTINGS]
    wanted = gate(all_at_once, _baseline(), settings, is_complete=True)
    outcomes, is_complete = outcomes_of(read_checks(_saved(tmp_path, count)), settings)
    found = gate(outcomes, _baseline(), settings, is_complete=is_complete)
    assert [stale.target for stale in found.stale] == ["removed"]
    assert written_as(name, found, Look()) == written_as(name, wanted, Look())


def test_a_missing_a_double_and_a_foreign_share_are_errors(tmp_path: Path) -> None:
    one, two, three = _saved(tmp_path, 3)
    with pytest.raises(UsageError, match="2/3, 3/3 is missing"):
        read_checks([one])
    copy = tmp_path / "copy.json"
    copy.write_bytes(one.read_bytes())
    with pytest.raises(UsageError, match="there twice"):
        read_checks([one, two, three, copy])
    other = tmp_path / "other.json"
    other.write_text(three.read_text(encoding="utf-8").replace('"count": 3', '"count": 4'))
    with pytest.raises(UsageError, match=r"other\.json is a share of another check"):
        read_checks([one, two, other])


def test_targets_that_are_in_two_files_are_an_error(tmp_path: Path) -> None:
    (whole,) = _saved(tmp_path, 1)
    table = json.loads(whole.read_text(encoding="utf-8")) | {"shard": None}
    for name in ("x.json", "y.json"):
        (tmp_path / name).write_text(json.dumps(table), encoding="utf-8")
    checks = read_checks([tmp_path / "x.json", tmp_path / "y.json"])
    with pytest.raises(UsageError, match=r"'c' is both in .*x\.json and in .*y\.json"):
        outcomes_of(checks, project(targets=SETTINGS))


def test_another_version_is_an_error(tmp_path: Path) -> None:
    (whole,) = _saved(tmp_path, 1)
    table = json.loads(whole.read_text(encoding="utf-8")) | {"tool_version": "0.0.1"}
    whole.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(UsageError, match=r"graphdoctor 0\.0\.1"):
        read_checks([whole])


def test_files_that_are_no_checks_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_checks([tmp_path / "nothing.json"])
    write(tmp_path, {"text.json": "hello"})
    with pytest.raises(UsageError, match="is not JSON"):
        read_checks([tmp_path / "text.json"])


def test_a_repository_is_checked_in_shares_and_gets_one_baseline(tmp_path: Path) -> None:
    unsafe = TINY.replace("import torch\n", "import torch\n" + NET).replace(
        "torch.nn.Linear(4, 4)", "Net()"
    )
    write(tmp_path, {"one.py": TINY, "two.py": unsafe})
    write(tmp_path, {"graphdoctor.toml": 'targets = ["one.py", "two.py"]'})
    codes = [
        run("check", f"--shard={n}/2", f"--report=json={n}.json", cwd=tmp_path).returncode
        for n in (1, 2)
    ]
    assert codes == [0, 1]
    merged = run("merge", "1.json", "2.json", "--output-format=concise", cwd=tmp_path)
    assert merged.returncode == 1 and "two.py:5: error: GD101" in merged.stdout
    missing = run("merge", "2.json", cwd=tmp_path)
    assert missing.returncode == 2 and "1/2 is missing" in missing.stderr
    done = run("baseline", "--from", "1.json", "2.json", cwd=tmp_path)
    assert done.returncode == 0 and "of 2 targets accepted" in done.stdout
    assert run("merge", "1.json", "2.json", cwd=tmp_path).returncode == 0


NET = """
class Net(torch.nn.Module):
    def forward(self, x):
        return x * x.sum().item()
"""
