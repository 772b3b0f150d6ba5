"""Which command wrote a file, and what reads it: said by whoever is given another command's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphdoctor.cli import main
from graphdoctor.reporters.plain_json import written
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.file_kinds import saved_kind
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport
from graphdoctor.values.sweep import Sweep
from graphdoctor.values.trace import TraceReport
from graphdoctor.values.watched import WatchReport
from tests.reporters.test_watch_page import REPORT as WATCHED
from tests.support.reports import PARTLY_SAFE

_KEYS = {
    "sweep": Sweep.__struct_fields__,
    "watch": WatchReport.__struct_fields__,
    "audit": AuditReport.__struct_fields__,
    "trace": TraceReport.__struct_fields__,
    "run": ("schema_version", "tool_version", "ending", "steps"),
    "check": ("kind", "targets", "tool_version", "verdict"),
    "baseline": ("version", "findings", "targets"),
    "SARIF": ("$schema", "version", "runs"),
    "profile": ("schemaVersion", "traceEvents"),
}


def saved(folder: Path, kind: str) -> str:
    path = folder / f"{kind}.json"
    keys = dict.fromkeys(_KEYS.get(kind, ()))
    path.write_text(written(PARTLY_SAFE) if kind == "report" else json.dumps(keys), "utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["report", *_KEYS])
def test_each_kind_is_known_by_its_keys(tmp_path: Path, kind: str) -> None:
    found = saved_kind(Path(saved(tmp_path, kind)).read_bytes())
    assert found is not None
    assert found.name == kind


@pytest.mark.parametrize(
    "command",
    ["merge", "baseline --from", "trace", "analyze", "run", "check", "sweep m.py --lengths", "check --config"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["report", "run", "sweep", "watch"])
def test_a_command_that_does_not_read_it_names_the_one_that_does(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    kind: str,
) -> None:
    path = saved(tmp_path, kind)
    (tmp_path / "m.py").write_text("model = None\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    writer = "analyze" if kind == "report" else kind
    assert main([*command.split(), path]) == 2
    said = capsys.readouterr().err
    assert f"is what `graphdoctor {writer}` saved: `graphdoctor report {path}`" in said
    assert len(said.splitlines()) == 1


def test_report_shows_what_other_commands_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "saved.json"
    path.write_text(written(WATCHED), "utf-8")
    assert main(["report", str(path)]) == 0
    assert "graphdoctor watch" in capsys.readouterr().out
    program = ProgramReport(
        PROGRAM_SCHEMA_VERSION, "0.1.0", ("train.py",), None, "finished", 0, 1.0, 1.0, ()
    )
    path.write_text(written(program), "utf-8")
    assert main(["report", str(path)]) == 0
    assert "The program ran to its end (exit code 0)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["sweep", "watch"])
def test_view_names_the_command_that_shows_what_has_no_html_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = saved(tmp_path, kind)
    assert main(["view", path, "-o", "-"]) == 2
    assert f"`graphdoctor report {path}` shows it; there is no HTML" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "view", "diff"])
@pytest.mark.parametrize("kind", ["baseline", "SARIF", "profile"])
def test_what_is_no_report_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
) -> None:
    path = saved(tmp_path, kind)
    assert main([command, path, *([path] if command == "diff" else [])]) == 2
    said = capsys.readouterr().err
    assert "required field" not in said
    assert f"{path} is " in said
