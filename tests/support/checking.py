"""Hand-built checks and small repositories for tests of `graphdoctor check`."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from graphdoctor.check.baseline import Baseline
from graphdoctor.check.gate import Outcome, gate
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import Settings, TargetSettings
from graphdoctor.values.check import Check, Fault
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Excerpt, Location
from graphdoctor.values.report import Report
from tests.support import warm
from tests.support.reports import SAFE

HERE = Path(__file__).parents[1]
REPOSITORY = HERE / "model_repository"
CHANGE = HERE / "model_repository_change"

# Everything that some receiving system might obey, or choke on.
HOSTILE = (
    "a\nb\r\n::error title=x::pwned\n##[error]old\n%0A%25 ]]> <script>alert(1)</script>"
    " & \"q\" 'q' `code` ``` | pipe @nobody #1 \x1b[31mred \x00 \ud800 \u202egnp.exe \u2028 \ufffe"
)


def finding(
    line: int = 3,
    *,
    rule: str = "GD101",
    file: str = "models/net.py",
    source: str = "if x.item() > 0:",
    **changes: object,
) -> Finding:
    """A finding with its line as the only code that is known."""
    plain = Finding(
        rule=rule,
        name="host-read",
        effect="replay-is-slow" if rule.startswith("GD3") else "capture-fails",
        message="The host waits.",
        why="A graph is recorded without the host.",
        fix="Keep it on the device.",
        location=Location(file, line, "forward"),
        excerpt=Excerpt(line, (source,)),
    )
    return msgspec.structs.replace(plain, **changes)


def report(*findings: Finding, **changes: object) -> Report:
    """A report with these findings, and otherwise nothing to complain about."""
    is_unsafe = any(one.effect != "replay-is-slow" for one in findings)
    verdict = "unsafe" if is_unsafe else "safe"
    return msgspec.structs.replace(SAFE, findings=findings, verdict=verdict, **changes)


def target(name: str = "net", entry: str = "models/net.py") -> TargetSettings:
    return TargetSettings(name, entry)


def project(root: Path = Path("/nowhere/project"), **settings: object) -> Project:
    return Project(root, replace(Settings(), **settings), "pyproject.toml")


def checked(
    results: dict[str, Report | Fault], baseline: Baseline | None = None, **settings: object
) -> Check:
    """What the gate says of these targets, which are all that there are."""
    outcomes = [Outcome(target(name), result) for name, result in results.items()]
    return gate(outcomes, baseline or Baseline(), project(**settings), is_complete=True)


def hostile_check() -> Check:
    """New, known, worse and failed, with hostile text wherever text can be."""
    nasty = finding(
        7,
        file=f"models/{HOSTILE}.py",
        source=HOSTILE,
        name=HOSTILE,
        message=HOSTILE,
        why=HOSTILE,
        fix=HOSTILE,
        module=HOSTILE,
    )
    outcomes = [
        Outcome(TargetSettings(HOSTILE, f"{HOSTILE}.py"), report(nasty, finding(9))),
        Outcome(target("broken" + HOSTILE), Fault("failed", 3, HOSTILE, HOSTILE)),
    ]
    from graphdoctor.check.baseline import Accepted, Entry, make

    accepted = make(
        [Entry(HOSTILE, "GD101", HOSTILE, HOSTILE)],
        [Accepted(HOSTILE, 0, 0, 1, 1.0, "safe", "cuda", "2.0")],
    )
    return gate(outcomes, accepted, project(), is_complete=True)


def run(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`graphdoctor ARGUMENTS` as a person would run it, with its output captured."""
    has_seed = "PYTHONHASHSEED" in variables  # which an interpreter takes when it starts
    line = warm.command_of_a_fresh_one if has_seed else partial(warm.command, warm.CLI)
    return subprocess.run(
        line(*arguments),
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def git_repository(folder: Path, source: Path = REPOSITORY) -> Path:
    """A copy of the sample repository, as git has it: without ignored files."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    git("init", "--quiet", cwd=folder)
    commit(folder, "start")
    return folder


def commit(folder: Path, message: str) -> None:
    git("add", "--all", cwd=folder)
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.com")
    git(*identity, "commit", "--quiet", "--allow-empty", "--message", message, cwd=folder)


def git(*arguments: str, cwd: Path) -> None:
    subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True)


def write(folder: Path, files: dict[str, str]) -> Path:
    """Files with these texts below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
