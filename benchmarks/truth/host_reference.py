"""This machine -> the figures of graphdoctor/measure/calibrate/reference.toml, and where its factor comes from.

    python benchmarks/truth/host_reference.py

Two links lead from a machine without a GPU to the class `server`: what this machine takes for three calls
that `graphdoctor calibrate` timed on the host of an H200, and what that host's profile predicts for steps
that a server's host ran, over what they took there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import torch

from graphdoctor.estimate.gpus import load_profile
from graphdoctor.measure.calibrate.host import timed, works
from graphdoctor.pipeline import analyze_target
from graphdoctor.values.options import AnalyzeOptions

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks/data/samples_h200_torch2.11.jsonl"
CALIBRATED = str(ROOT / "benchmarks/data/profile_h200_torch2.11.toml")
# Inference whose eager step the host paces: nothing in it was fitted.
STEPS = ("gelu.py", "dlrm.py", "kv_cache.py:static", "moe.py", "moe.py:dense", "resnet50.py")
_SECONDS = 5.0


def main() -> None:
    torch.set_num_threads(1)
    tiny = torch.ones(16)
    every = {**works(torch), "in place": lambda: tiny.add_(1)}
    took = {
        kind: found.least_us for kind, found in timed(every, time.perf_counter, _SECONDS).items()
    }
    for kind, least_us in took.items():
        print(f"{kind} = {least_us:.3g}")
    costs = load_profile(CALIBRATED).host_us
    here = {
        "nn.Identity": took["python"] / costs.module_call.mid,
        "Tensor.view": took["dispatcher"] / costs.view.mid,
        "in place": took["in place"] / costs.operator.mid,
    }
    for name, ratio in here.items():
        print(f"{name}: {ratio:.2f} times the host of the H200")
    there = list(_of_calibrated_host())
    print(f"that host over the server's: {', '.join(f'{ratio:.2f}' for ratio in sorted(there))}")
    low, high = min(here.values()) * min(there), max(here.values()) * max(there)
    middle = exp(fmean(log(ratio) for ratio in here.values())) * median(there)
    print(f"times = {low:.2f}, {middle:.2f}, {high:.2f}")


def _of_calibrated_host() -> Iterator[float]:
    rows = {}
    for line in MEASURED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row.get("case", "").removeprefix("sample:sample_models/")] = row
    for step in STEPS:
        options = AnalyzeOptions(device="emulated", gpu=CALIBRATED, strategies=())
        report = analyze_target(f"{ROOT}/sample_models/{step}", options, lambda doing: None)
        assert report.estimate is not None
        yield report.estimate.host_us.mid / rows[step]["estimate"]["eager_us"]["mid"]


if __name__ == "__main__":
    main()
