"""The suite's quick half in an environment of another torch and Python -> a line of benchmarks/data/versions.jsonl.

python benchmarks/truth/matrix.py 2.6.0 2.15.0           # makes .matrix/torch-2.6.0 and so on: gigabytes each
python benchmarks/truth/matrix.py --environment FOLDER   # one that is there, with graphdoctor[test] in it

The quick half is every room that runs steps, with the verdict of each sample. A build of torch with CUDA is
what the registry gives; without a GPU the emulated device stands in, as in anybody's CI.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks/data/versions.jsonl"
ROOMS = ("record", "device", "diagnose", "partition", "proof", "graphs", "captured", "target")
SAMPLES = "tests/pipeline/test_samples.py"
_ABOUT = """
import json, platform, torch, transformers
print(json.dumps(dict(python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda or "",
    gpu=torch.cuda.is_available(), transformers=transformers.__version__)))
"""


def made(version: str) -> Path:
    """An environment with this torch and graphdoctor in it."""
    folder = ROOT / ".matrix" / f"torch-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", f"torch=={version}"]
    subprocess.run([*install, "-e", f"{ROOT}[test,tensorboard]"], check=True)
    return folder


def asked(environment: Path, jobs: int) -> dict[str, Any]:
    """What the tests say there; a failure is told by its name."""
    python = str(environment / "bin" / "python")
    about = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        begun = time.monotonic()
        rooms = [f"tests/{room}" for room in ROOMS]
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-n", str(jobs), "--dist", "worksteal", *rooms, SAMPLES]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
        wall_s = round(time.monotonic() - begun)
    skipped = [case.find("skipped") for case in cases if case.find("skipped") is not None]
    expected = sum(each is not None and each.get("type") == "pytest.xfail" for each in skipped)
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {
        "date": f"{datetime.date.today()}",
        **json.loads(about.stdout),
        "passed": len(cases) - len(skipped) - len(failed),
        "otherwise_there": expected,
        "skipped": len(skipped) - expected,
        "failed": failed,
        "wall_s": wall_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="of torch")
    parser.add_argument("--environment", type=Path, action="append", default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    for environment in [*options.environment, *map(made, options.versions)]:
        row = asked(environment, options.jobs)
        with OUT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
