"""Whether programs print under `graphdoctor run --to-the-end` what they print under Python, byte for byte -> JSON.

    python benchmarks/gpu/to_the_end.py [--json FILE] [--workers 8] [--limit 100] [PROGRAM ...]

Each of the sample programs whose packages are there runs under Python and under graphdoctor, which diagnoses its
steps; several programs at once. Only the rates and times that they print are left out of the comparison; a program
whose output differs runs under Python once more, to know whether it repeats itself. Without a GPU the programs are left
on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "plain_loop.py", "gpt_training.py", "dqn.py", "image_training.py", "hf_trainer.py", "lightning_module.py",
    "generate.py", "generate.py --cache static", "serving.py",
)  # fmt: skip
_NEEDS = {
    "hf_trainer.py": "accelerate",
    "lightning_module.py": "lightning",
    "generate.py": "transformers",
}
_TIMES = re.compile(rb"\(\d+ images/s\)|'train_(runtime|\w+_per_second)': '[^']*'")


def ran(program: str, options: list[str | Path], limit_s: float) -> dict[str, Any]:
    """What a program printed, and how it ended; `options` are those before the program."""
    name, *arguments = program.split()
    command = [sys.executable, *options, str(ROOT / "sample_programs" / name), *arguments]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired as late:
            return {"exit_code": None, "out": late.stdout or b"", "said": late.stderr or b""}
    taken_s = round(time.monotonic() - begun, 1)
    return {
        "exit_code": done.returncode, "out": done.stdout, "said": done.stderr, "taken_s": taken_s,
    }  # fmt: skip


def compared(program: str, device: str, limit_s: float) -> dict[str, Any]:
    missing = _NEEDS.get(program.split()[0], "")
    if missing and importlib.util.find_spec(missing) is None:
        return {"program": program, "left_out": f"{missing} is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        under: list[str | Path] = [
            "-m",
            "graphdoctor",
            "run",
            "--isolated",
            "--to-the-end",
            "--device",
            device,
        ]
        under += ["--budget", "10s", "--json", report]
        runs = {"plain": ran(program, [], limit_s), "under": ran(program, under, limit_s)}
        steps = json.loads(report.read_text())["steps"] if report.exists() else []
    printed = {key: _TIMES.sub(b"", run["out"]) for key, run in runs.items()}
    codes = {key: run["exit_code"] for key, run in runs.items()}
    is_same = printed["plain"] == printed["under"] and set(codes.values()) == {0}
    row = {
        "program": program,
        "prints_the_same": is_same,
        "lines": len(printed["plain"].splitlines()),
        "exit_codes": codes,
        "taken_s": {key: run.get("taken_s") for key, run in runs.items()},
        "steps": [
            {
                "name": step["name"],
                "mode": step["mode"],
                "verdict": step["report"]["verdict"] if step.get("report") else step["reason"],
            }
            for step in steps
        ],
    }
    if not is_same:
        row["repeats_itself"] = printed["plain"] == _TIMES.sub(
            b"", ran(program, [], limit_s)["out"]
        )
        row["printed"] = {key: text.decode(errors="replace") for key, text in printed.items()}
        row["said"] = runs["under"]["said"].decode(errors="replace")[-3000:]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds, for each run")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu-as-is"
    rows = []
    with ThreadPoolExecutor(args.workers) as pool:
        waited = [pool.submit(compared, name, device, args.limit) for name in args.programs]
        for each in as_completed(waited):
            rows.append(each.result())
            print(json.dumps(rows[-1]), flush=True)
    found = {
        "gpu": torch.cuda.get_device_name() if has_gpu else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "programs": sorted(rows, key=lambda row: args.programs.index(row["program"])),
    }
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
