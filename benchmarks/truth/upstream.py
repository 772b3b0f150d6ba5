"""Bugs that public libraries had and fixed -> what graphdoctor says of the version before and of the version after.

    python benchmarks/truth/upstream.py benchmarks/data/upstream.jsonl --installs DIR

`DIR` holds each version of each package in a folder of its own; what is missing is installed there with pip.
The bugs are in benchmarks/truth/upstream/manifest.toml. `--only NAME` repeats the rows whose name begins so.
`--gpu`, on a machine with a GPU: what a real capture makes of the hazards of today's releases, added to their rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = Path(__file__).with_name("upstream") / "manifest.toml"
ON_GPU = Path(__file__).with_name("upstream_on_gpu.py")
SCRIPT = "upstream_step.py"
LIMIT_S = 300
PRELUDE = """from types import SimpleNamespace

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""
ENDING = """
def graphdoctor_target():
    return SimpleNamespace(step=step, inputs=inputs)
"""

Bug = dict[str, Any]


def installed(bug: Bug, version: str, installs: Path) -> Path:
    folder = installs / f"{bug['package'].replace('-', '_')}-{version}"
    if not folder.is_dir():
        wanted = [f"{bug['package']}=={version}", *bug.get("with", ())]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*command, str(folder), *wanted], check=True)
    return folder


def said_of(bug: Bug, version: str, installs: Path) -> dict[str, object]:
    """The verdict of one version, and a row for each finding: rule, file relative to the package, line."""
    folder = installed(bug, version, installs)
    with tempfile.TemporaryDirectory() as work:
        saved = Path(work, "report.json")
        command = ["-m", "graphdoctor", "analyze", SCRIPT, "--json", saved.name]
        ran = _run(command, bug["step"] + ENDING, folder, work)
        if not saved.exists():
            raise RuntimeError(f"{bug['name']}, {version}: {ran.stderr[-2000:]}")
        report = json.loads(saved.read_text(encoding="utf-8"))
    findings = [
        [each["rule"], _without(place["file"], folder), place["line"]]
        for each in report["findings"]
        for place in [each.get("location") or {"file": "", "line": 0}]
    ]
    return {"version": version, "verdict": report["verdict"], "findings": findings}


def captured_of(bug: Bug, installs: Path) -> dict[str, str]:
    """What a capture on this machine's GPU makes of today's version."""
    folder = installed(bug, bug["today"], installs)
    with tempfile.TemporaryDirectory() as work:
        ran = _run([str(ON_GPU), SCRIPT], bug["step"], folder, work)
    if ran.returncode:
        raise RuntimeError(f"{bug['name']}: {ran.stderr[-2000:]}")
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _run(
    command: list[str], step: str, folder: Path, work: str
) -> subprocess.CompletedProcess[str]:
    """Python with the package, in a folder that holds the script."""
    Path(work, SCRIPT).write_text(PRELUDE + step, encoding="utf-8")
    return subprocess.run(
        [sys.executable, *command],
        cwd=work,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _without(path: str, folder: Path) -> str:
    """`path` from the package's folder on; a path of the machine is not kept."""
    _, there, rest = path.partition(f"{folder.name}/")
    return rest if there else Path(path).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--installs", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    import torch

    known = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    bugs = [*known["bug"], *known["alive"]]
    text = given.out.read_text(encoding="utf-8") if given.out.exists() else ""
    rows = {row["name"]: row for row in map(json.loads, text.splitlines())}
    for bug in known["alive"] if given.gpu else bugs:
        if not bug["name"].startswith(given.only):
            continue
        if given.gpu:
            row = rows.get(bug["name"], {"name": bug["name"]})
            row["captured"] = captured_of(bug, given.installs.resolve())
            rows[bug["name"]] = row
            print(json.dumps({"name": bug["name"]} | row["captured"]), flush=True)
            _save(given.out, bugs, rows)
            continue
        row = {key: bug[key] for key in ("name", "package", "reference", "rule") if key in bug}
        row |= {
            when: said_of(bug, bug[when], given.installs.resolve())
            for when in ("before", "after", "today")
            if when in bug
        }
        if "today" in bug:
            row["step"] = bug["step"]
        row |= {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "torch": torch.__version__,
        }
        rows[bug["name"]] = row
        print(json.dumps(row), flush=True)
        _save(given.out, bugs, rows)


def _save(out: Path, bugs: list[Bug], rows: dict[str, Bug]) -> None:
    kept = [rows[each["name"]] for each in bugs if each["name"] in rows]
    out.write_text("".join(f"{json.dumps(each)}\n" for each in kept), encoding="utf-8")


if __name__ == "__main__":
    main()
