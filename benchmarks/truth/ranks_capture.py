"""`python ranks_capture.py SCENARIO FOLDER` as one of two ranks: what NCCL and CUDA alone make of it as a graph.

Of graphdoctor only the reading of the target is in between: its inputs, and where its state is. What was
reached is written down at each stage, so that a rank which hangs has said where.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ranks_scenarios
import torch
from ranks_scenarios import SCENARIOS
from raw_capture import clones, difference, innermost, tensors_of, words

from graphdoctor.graphs.compare import local_part
from graphdoctor.target import from_object, named_tensors
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.target import Inputs, Target

WARM_UPS, ROUNDS, SEED = 15, 3, 7
NOTHING = 1e-9


class Ledger:
    """What this rank has found so far, in a file that others read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, stage: str, error: str = "") -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"stage": stage, "error": error}))
        part.replace(self._path)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    assert name in SCENARIOS
    ledger = Ledger(folder / f"{rank}.json")
    torch.cuda.set_device(rank)
    torch.manual_seed(100 + rank)
    torch.backends.cudnn.allow_tf32 = False
    try:
        decide(name, ledger)
    except Exception as error:
        ledger.write("does not run", words(error))
    os._exit(0)  # NCCL may wait for ever for what was captured


def decide(name: str, ledger: Ledger) -> None:
    """Warm up and capture on one side stream, as PyTorch's notes on DDP ask."""
    ledger.write("hangs in eager")
    side = torch.cuda.Stream()
    target = from_object(getattr(ranks_scenarios, name))
    batches = [target.fresh_inputs() for _ in range(ROUNDS)]
    static = clone_inputs(batches[0])
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            call(target, clone_inputs(batches[0]))
        before = copied_state(target)
    torch.cuda.synchronize()
    ledger.write("hangs in the capture")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            kept = call(target, static)
    except Exception as error:
        ledger.write("refused", words(innermost(error)))
        return
    ledger.write("hangs in a replay")
    for index, batch in enumerate(batches):
        for old, new in zip(tensors_of(parts(static)), tensors_of(parts(batch)), strict=True):
            old.copy_(new)
        replay = run(target, before, lambda: (graph.replay(), kept)[1])
        with torch.cuda.stream(side):
            eager = run(target, before, lambda one=batch: call(target, clone_inputs(one)))
        why, _ = difference(without_zeros(replay), without_zeros(eager), without_zeros(eager))
        if why:
            drawn = torch.cuda.default_generators[torch.cuda.current_device()].get_offset()
            with torch.cuda.stream(side), believing_to_be_captured():
                same = run(target, before, lambda one=batch: call(target, clone_inputs(one)))
            drawn_otherwise = torch.cuda.default_generators[
                torch.cuda.current_device()
            ].get_offset()
            other, _ = difference(without_zeros(replay), without_zeros(same), without_zeros(same))
            stage = "differs" if other or drawn == drawn_otherwise else "draws otherwise"
            path = f"; from eager on the path of the capture: {other or 'nothing'}"
            drew = f"; the generator ends at {drawn} in eager, and there at {drawn_otherwise}"
            ledger.write(stage, f"replay {index + 1}: {why}{path}{drew}")
            return
    ledger.write("captured")


@contextmanager
def believing_to_be_captured() -> Iterator[None]:
    """Libraries take other paths while they are captured; here eager takes them."""
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked  # type: ignore[assignment]


def without_zeros(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What is nothing but rounding, as the gradient of a key's bias is, becomes zero."""
    return [
        torch.where(each.abs() < NOTHING, 0, each) if each.is_floating_point() else each
        for each in values
    ]


def run(
    target: Target, before: dict[str, torch.Tensor], step: Callable[[], object]
) -> list[torch.Tensor]:
    """What one run leaves behind, from the state `before`."""
    restore(target, before)
    torch.manual_seed(SEED)
    result = step()
    torch.cuda.synchronize()
    return [*clones(tensors_of(result)), *copied_state(target).values()]


def call(target: Target, inputs: Inputs) -> Any:
    return target.step(*inputs.args, **inputs.kwargs)


def parts(inputs: Inputs) -> list[Any]:
    return [*inputs.args, *inputs.kwargs.values()]


def copied_state(target: Target) -> dict[str, torch.Tensor]:
    return {path: one.detach().clone() for path, one in live_state(target).items()}


def live_state(target: Target) -> dict[str, torch.Tensor]:
    """Parameters, buffers and what optimizers keep on the device; gradients are made anew."""
    named = named_tensors(target.roots).items()
    kept = {path: local_part(one) for path, one in named if ".grad" not in path}
    return {path: one for path, one in kept.items() if one.is_cuda}


@torch.no_grad()
def restore(target: Target, before: dict[str, torch.Tensor]) -> None:
    now = live_state(target)
    for path, value in before.items():
        now[path].copy_(value)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
