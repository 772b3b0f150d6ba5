"""ResNet-50 at batch 128, timed without and with waiting for the GPU -> both figures, as lines or JSON.

    python benchmarks/gpu/timing_mistake.py [--json FILE] [--device cuda]

A call only puts kernels into a queue: a clock that is read right after it has timed Python. The second
figure synchronises before each reading; the third is what CUDA events say of the device alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from workloads.vision import resnet50

CALLS = 20


def wrong_s(step: Callable[[], object]) -> float:
    """One call by the clock, the device being idle before and nobody waiting for it afterwards."""
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def right_s(step: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def device_s(step: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        step()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, object] = {"calls": CALLS}
    for batch in (1, 128):
        model, inputs = resnet50(batch)

        @torch.no_grad()
        def step(model=model, inputs=inputs) -> object:  # type: ignore[no-untyped-def]
            return model(*inputs)

        for _ in range(5):
            step()
        found[f"batch_{batch}"] = {
            "wrong_s": wrong_s(step),
            "right_s": right_s(step),
            "device_s": device_s(step),
        }
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
