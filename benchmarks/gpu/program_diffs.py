"""What is proposed for programs, tried on a GPU: same results or not, and the time of a step before and after.

    python benchmarks/gpu/program_diffs.py [--json FILE] [--repeats 2] [--budget 30s] [PROGRAM ...]

Each program of PROGRAMS is copied with larger sizes and more steps, `graphdoctor run --diff` proposes a change and
tries it, for all programs at once, and the diff is applied. Then the program as it was and the changed one run in
turn, alone on the machine, `--repeats` times each, without graphdoctor but for a counter of optimizer steps, in
forks of a process that has imported torch: `step_us` is the wall time from one optimizer step to the next, with all
that the program does between them, over the steps after the first quarter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

ROOT = Path(__file__).parents[2]
# What is larger than in the sample: everything else of the program is as it stands there.
PROGRAMS: dict[str, dict[str, str]] = {
    "plain_loop.py": {
        "torch.randn(96, 16), torch.randint(0, 4, (96,))": "torch.randn(3200, 16), torch.randint(0, 4, (3200,))",
        "nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1)": "nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.1),"
        " *(m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU()))",
        "nn.Linear(32, 4)": "nn.Linear(256, 4)",
        "default=2": "default=1",
    },
    "gpt_training.py": {
        "max_iters, eval_interval, eval_iters = 12, 6, 2": "max_iters, eval_interval, eval_iters = 200, 100, 2",
        "batch_size, block_size, vocab_size = 4, 16, 64": "batch_size, block_size, vocab_size = 8, 64, 64",
        "width=32, heads=2": "width=256, heads=4",
        "width=32, layers=2": "width=256, layers=6",
    },
    "image_training.py": {
        "torch.randn(48, 3, 16, 16), torch.randint(0, 10, (48,))": "torch.randn(800, 3, 16, 16),"
        " torch.randint(0, 10, (800,))",
        "nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),": "nn.ReLU(inplace=True), *(m for _ in range(8) for m in"
        " (nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))),"
        " nn.AdaptiveAvgPool2d(1),",
    },
}  # fmt: skip


def larger(name: str, folder: Path) -> Path:
    """The sample program in the folder, with its sizes changed."""
    text = (ROOT / "sample_programs" / name).read_text()
    for old, new in PROGRAMS[name].items():
        assert text.count(old) == 1, (name, old)
        text = text.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    return file


def proposed(file: Path, budget: str) -> dict[str, Any]:
    """What `graphdoctor run --diff` says; the diff lies beside the program."""
    diff, report = file.with_suffix(".diff"), file.with_suffix(".json")
    command: list[str | Path] = [sys.executable, "-m", "graphdoctor", "run", "--stop"]
    command += [
        "--budget",
        budget,
        "--strategies",
        "whole,modules",
        "--diff",
        diff,
        "--json",
        report,
    ]
    begun = time.monotonic()
    subprocess.run([*command, file.name], cwd=file.parent, check=True, stdout=subprocess.DEVNULL)
    patch = json.loads(report.read_text())["patch"]
    return {"patch": patch, "graphdoctor_s": round(time.monotonic() - begun, 1)}


def timed(file: Path) -> tuple[str, dict[str, float]]:
    """What the program prints, and the time of its steps."""
    printed, found = file.with_suffix(".printed"), file.with_suffix(".times")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with printed.open("w") as out, contextlib.redirect_stdout(out):
                stamps = run_counted(file)
            first = len(stamps) // 4
            taken = (stamps[-1] - stamps[first]) / (len(stamps) - 1 - first)
            found.write_text(json.dumps({"steps": len(stamps) - 1, "step_us": 1e6 * taken}))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"{file.name} failed")
    return printed.read_text(), json.loads(found.read_text())


def run_counted(file: Path) -> list[float]:
    """When each optimizer step ended, and when all had run."""
    stamps: list[float] = []
    register_optimizer_step_post_hook(lambda *_: stamps.append(time.perf_counter()))
    os.chdir(file.parent)
    sys.argv, sys.path[0] = [str(file)], str(file.parent)
    runpy.run_path(str(file), run_name="__main__")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return [*stamps, time.perf_counter()]


def measured(name: str, found: dict[str, Any], repeats: int, folder: Path) -> dict[str, Any]:
    if not found["patch"] or found["patch"]["status"] != "same results":
        return found
    before, after = folder / "before" / name, folder / "after" / name
    larger(name, after.parent)
    diff = before.with_suffix(".diff")
    subprocess.run(["git", "apply", str(diff)], cwd=after.parent, check=True)
    runs: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    printed: dict[str, str] = {}
    for _ in range(repeats):
        for which, one in (("before", before), ("after", after)):
            printed[which], each = timed(one)
            runs[which].append(each)
    medians = {k: statistics.median(each["step_us"] for each in v) for k, v in runs.items()}
    return {
        **found,
        "runs": runs,
        "prints_the_same": without_times(printed["before"]) == without_times(printed["after"]),
        "step_us": medians,
        "speedup": medians["before"] / medians["after"],
    }


def without_times(text: str) -> list[str]:
    return [line.partition(" (")[0] for line in text.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=[*PROGRAMS], metavar="PROGRAM")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--budget", default="30s", help="of graphdoctor run, for each program")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    programs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: Path(temporary, Path(name).stem) for name in args.programs}
        files = [larger(name, folder / "before") for name, folder in folders.items()]
        with ThreadPoolExecutor() as pool:
            said = list(pool.map(lambda file: proposed(file, args.budget), files))
        print(json.dumps(said, indent=1), flush=True)
        for (name, folder), each in zip(folders.items(), said, strict=True):
            programs.append({"program": name, **measured(name, each, args.repeats, folder)})
            print(json.dumps(programs[-1], indent=1), flush=True)
            save(args.json, programs, gpu="")
    has_gpu = torch.cuda.is_available()  # asked after the forks, which could not use CUDA otherwise
    save(args.json, programs, gpu=torch.cuda.get_device_name() if has_gpu else "none")


def save(file: Path | None, programs: list[dict[str, Any]], *, gpu: str) -> None:
    found = {
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "programs": programs,
    }
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
