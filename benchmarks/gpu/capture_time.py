"""How long `graphdoctor.capture` takes, beside ten warm eager steps of the same training.

    python benchmarks/gpu/capture_time.py [--json FILE] [--emulated] [--where FILE]

Each model trains with SGD; the steps are waited for once, after the last. With `--emulated` no GPU is needed, and
times are those of the processor, which other work on the machine changes least. `--where` writes in which functions
the host was while it captured once more: every millisecond is one look.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from samples_and_rules import ROOT
from torch import nn

import graphdoctor

sys.path.insert(0, str(ROOT / "benchmarks/speed"))

from captured_call import machine
from models.captured import subjects

STEPS = 10
CAPTURES = 3
LOOK_S = 0.001
SHOWN = 150
Models = dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Time that goes by until the device is idle again."""
    torch.cuda.synchronize()
    start = clock()
    work()
    torch.cuda.synchronize()
    return clock() - start


def measured(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], clock: Callable[[], float]
) -> dict[str, float]:
    """Ten warm steps and the capture; then ten steps with what it gave, the first call left out."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def steps(called: nn.Module, count: int = STEPS) -> None:
        for _ in range(count):
            called(*inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def capture_s() -> float:
        return seconds(
            lambda: found.append(graphdoctor.capture(model, *inputs, mode="training")), clock
        )

    steps(model)
    eager_s = seconds(lambda: steps(model), clock)
    found: list[Any] = []
    first_s = capture_s()
    again_s = []
    for _ in range(CAPTURES - 1):
        found.pop().release()
        again_s.append(capture_s())
    (fast,) = found
    steps(fast, 2)
    fast_s = seconds(lambda: steps(fast), clock)
    coverage = float(fast.coverage)
    fast.release()
    return {
        "ten_eager_steps_s": eager_s,
        "capture_s": first_s,
        "fastest_again_s": min(again_s),
        "ten_captured_steps_s": fast_s,
        "coverage": coverage,
        "times_ten_steps": first_s / eager_s,
    }


@contextmanager
def looked_at(seen: Counter[tuple[str, ...]]) -> Iterator[None]:
    """Count the stacks of Python's functions in which the block is."""

    def look(_: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            code = frame.f_code
            stack.append(f"{'/'.join(Path(code.co_filename).parts[-3:])}:{code.co_name}")
            frame = frame.f_back
        seen[tuple(stack)] += 1

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def where(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Iterator[str]:
    """The functions in which a capture of the model is longest: with those that they call, and alone."""
    seen: Counter[tuple[str, ...]] = Counter()
    model.train()
    with looked_at(seen):
        graphdoctor.capture(model, *inputs, mode="training").release()
    inside: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for stack, count in seen.items():
        inside.update(dict.fromkeys(stack, count))
        alone[stack[0]] += count
    for title, found in (("with what it calls", inside), ("alone", alone)):
        yield f"-- looks at a function {title}, of {sum(seen.values())}"
        yield from (f"{count:6} {name}" for name, count in found.most_common(SHOWN))


def write_where(file: Path, models: Models) -> None:
    """One part for each model."""
    lines = (line for name, one in models.items() for line in (f"== {name}", *where(*one)))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--where", type=Path)
    parser.add_argument("--emulated", action="store_true")
    args = parser.parse_args()
    device: AbstractContextManager[object] = (
        graphdoctor.EmulatedDevice() if args.emulated else nullcontext()
    )
    clock = time.process_time if args.emulated else time.perf_counter
    with device:
        models = subjects("cuda")
        # The first capture of a process imports what all of them need.
        measured(*models["small, 3 inputs"], clock)
        found = {name: measured(*subject, clock) for name, subject in models.items()}
        if args.where:
            write_where(args.where, models)
    print(machine())
    for name, figures in found.items():
        print(name, *(f"{figure} {value:.3f}" for figure, value in figures.items()))
    if args.json:
        text = json.dumps({"machine": machine(), "steps": STEPS, "models": found}, indent=1)
        args.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
