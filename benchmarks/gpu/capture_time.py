"""How long `graphdoctor.capture` takes, beside ten warm eager steps of the same training.

    python benchmarks/gpu/capture_time.py [--json FILE]

Each model trains with SGD; the steps are waited for once, after the last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from samples_and_rules import ROOT
from torch import nn

import graphdoctor

sys.path.insert(0, str(ROOT / "benchmarks/speed"))

from captured_call import machine
from models.captured import subjects

STEPS = 10


def seconds(work: Callable[[], object]) -> float:
    """Time that goes by until the device is idle again."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measured(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Ten warm steps and the capture; then ten steps with what it gave, the first call left out."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def steps(called: nn.Module, count: int = STEPS) -> None:
        for _ in range(count):
            called(*inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    steps(model)
    eager_s = seconds(lambda: steps(model))
    found: list[nn.Module] = []
    capture_s = seconds(lambda: found.append(graphdoctor.capture(model, *inputs, mode="training")))
    (fast,) = found
    steps(fast, 2)
    fast_s = seconds(lambda: steps(fast))
    coverage = float(fast.coverage)
    fast.release()
    return {
        "ten_eager_steps_s": eager_s,
        "capture_s": capture_s,
        "ten_captured_steps_s": fast_s,
        "coverage": coverage,
        "times_ten_steps": capture_s / eager_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models = subjects("cuda")
    # The first capture of a process imports what all of them need.
    measured(*models["small, 3 inputs"])
    found = {name: measured(*subject) for name, subject in models.items()}
    print(machine())
    for name, figures in found.items():
        print(name, *(f"{figure} {value:.3f}" for figure, value in figures.items()))
    if args.json:
        text = json.dumps({"machine": machine(), "steps": STEPS, "models": found}, indent=1)
        args.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
