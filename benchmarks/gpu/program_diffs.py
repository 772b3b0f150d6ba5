"""What is proposed for programs, tried on a GPU: same results or not, and the time of a step before and after.

    python benchmarks/gpu/program_diffs.py [--json FILE] [--repeats 2] [PROGRAM ...]

Each program of PROGRAMS is copied with larger sizes and more steps, `graphdoctor run --diff` proposes a change and
tries it, and the diff is applied. Then the program as it was and the changed one run in turn, `--repeats` times each,
under plain Python with a counter on optimizer steps: `step_us` is the wall time from one optimizer step to the next,
with all that the program does between them, over the steps after the first quarter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STEPS = 400
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
        "max_iters, eval_interval, eval_iters = 12, 6, 2": "max_iters, eval_interval, eval_iters = 400, 200, 2",
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
_COUNTER = """\
import json, os, runpy, sys, time
import torch
from torch.optim import optimizer
stamps = []
def stepped(*_):
    if len(stamps) == {first} and torch.cuda.is_available():
        torch.cuda.synchronize()
    stamps.append(time.perf_counter())
optimizer.register_optimizer_step_post_hook(stepped)
file = sys.argv[1]
sys.argv = [file]
sys.path[0] = os.path.dirname(file)
try:
    runpy.run_path(file, run_name="__main__")
finally:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    ended = time.perf_counter()
    steps = len(stamps) - 1 - {first}
    sys.stderr.write(json.dumps({{"steps": len(stamps), "step_us": 1e6 * (ended - stamps[{first}]) / max(1, steps)}}))
"""


def larger(name: str, folder: Path) -> Path:
    """The sample program in the folder, with its sizes changed."""
    text = (ROOT / "sample_programs" / name).read_text()
    for old, new in PROGRAMS[name].items():
        assert text.count(old) == 1, (name, old)
        text = text.replace(old, new)
    file = folder / name
    file.write_text(text)
    return file


def proposed(file: Path) -> dict[str, Any]:
    """What `graphdoctor run --diff` says; the diff lies beside the program."""
    diff, report = file.with_suffix(".diff"), file.with_suffix(".json")
    command = [
        sys.executable,
        "-m",
        "graphdoctor",
        "run",
        "--stop",
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
    counter = _COUNTER.format(first=STEPS // 4)
    command = [sys.executable, "-c", counter, str(file)]
    done = subprocess.run(command, cwd=file.parent, check=True, capture_output=True, text=True)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def measured(name: str, repeats: int, folder: Path) -> dict[str, Any]:
    before = folder / "before"
    before.mkdir()
    file = larger(name, before)
    found = {"program": name, **proposed(file)}
    if not found["patch"] or found["patch"]["status"] != "same results":
        return found
    after = folder / "after"
    after.mkdir()
    changed = larger(name, after)
    diff = file.with_suffix(".diff")
    subprocess.run(["git", "apply", str(diff)], cwd=after, check=True)
    runs: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    printed: dict[str, str] = {}
    for _ in range(repeats):
        for which, one in (("before", file), ("after", changed)):
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
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    import torch

    has_gpu = torch.cuda.is_available()
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if has_gpu else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "programs": [],
    }
    for name in args.programs:
        with tempfile.TemporaryDirectory() as folder:
            found["programs"].append(measured(name, args.repeats, Path(folder)))
        print(json.dumps(found["programs"][-1], indent=1), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
