"""The suite's quick half in an environment of another torch and Python -> lines of benchmarks/data/versions.jsonl.

python benchmarks/truth/matrix.py 2.6.0 2.15.0           # makes .matrix/torch-2.6.0-python and so on: gigabytes each
python benchmarks/truth/matrix.py 2.9.1 --python python3.12
python benchmarks/truth/matrix.py --environment FOLDER   # one that is there, with graphdoctor[test] in it
python benchmarks/truth/matrix.py --environment FOLDER --room graphs --room samples

The quick half is every room that runs steps, with the verdict of each sample. Each room is a line, so that one
that was mended can be run again alone; the page takes the newest of each. What fails beside other tests is run
again by itself, since a deadline may pass on a machine that does other work. A build of torch with CUDA is what
the registry gives; without a GPU the emulated device stands in, as in anybody's CI.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/pages"))

from versions import DATA, ROOMS  # noqa: E402

_SAMPLES = "tests/pipeline/test_samples.py"
_ABOUT = """
import json, platform, torch, transformers
print(json.dumps(dict(python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda or "",
    gpu=torch.cuda.is_available(), transformers=transformers.__version__)))
"""


def made(version: str, python: str) -> Path:
    """An environment with this torch and graphdoctor in it."""
    folder = ROOT / ".matrix" / f"torch-{version}-{Path(python).name}"
    made_python = folder / "bin" / "python"
    if not made_python.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    install = [str(made_python), "-m", "pip", "install", "--quiet", f"torch=={version}"]
    subprocess.run([*install, "-e", f"{ROOT}[test,tensorboard]"], check=True)
    return folder


def about(python: Path) -> dict[str, Any]:
    said = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True)
    return dict(json.loads(said.stdout))


def asked(python: Path, room: str, jobs: int) -> dict[str, Any]:
    """What the tests of a room say there; a failure is told by its name."""
    begun = time.monotonic()
    where = _SAMPLES if room == "samples" else f"tests/{room}"
    cases = run(python, "-n", str(jobs), "--dist", "worksteal", where)
    again: list[str] = []
    if failed := [case for case in cases if has_failed(case)]:
        again = [name(case) for case in failed if passes_alone(python, case)]
    skipped = [case.find("skipped") for case in cases]
    expected = [each for each in skipped if each is not None and each.get("type") == "pytest.xfail"]
    left_out = sum(each is not None for each in skipped)
    if not cases:
        raise SystemExit(f"the tests of {room} ended without a report: run pytest {where} by hand")
    return {
        "date": f"{datetime.datetime.now(datetime.UTC).date()}",
        "room": room,
        "passed": len(cases) - left_out - (len(failed) - len(again)),
        "passed_alone": again,
        "otherwise_there": len(expected),
        "skipped": left_out - len(expected),
        "failed": [name(case) for case in failed if name(case) not in again],
        "wall_s": round(time.monotonic() - begun),
    }


def passes_alone(python: Path, case: ElementTree.Element) -> bool:
    cases = run(python, node(case))
    return bool(cases) and not any(map(has_failed, cases))


def run(python: Path, *what: str) -> Sequence[ElementTree.Element]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        here = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command += [f"--junitxml={report}", *what]
        subprocess.run(command, cwd=ROOT, env=here, check=False)
        if not report.exists():  # the process itself crashed
            return []
        return list(ElementTree.parse(report).getroot().iter("testcase"))


def has_failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def node(case: ElementTree.Element) -> str:
    """As pytest takes it on its command line."""
    return f"{str(case.get('classname')).replace('.', '/')}.py::{case.get('name')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="of torch")
    parser.add_argument("--python", default=sys.executable, help="that environments are made with")
    parser.add_argument("--environment", type=Path, action="append", default=[])
    parser.add_argument("--room", choices=ROOMS, action="append", default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    environments = (made(version, options.python) for version in options.versions)
    for environment in [*options.environment, *environments]:
        python = environment / "bin" / "python"
        there = about(python)
        for room in options.room or ROOMS:
            line = json.dumps({**there, **asked(python, room, options.jobs)})
            with DATA.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
