"""A target and its captured step -> runs of both from the same state, inputs and random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.replayable import Replayable
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import user_code

FIRST_SEED = 20_000  # any number: each step gets one of its own, the same in every twin


class ReplayFailed(Exception):
    """A replay raised; the text says which, and what."""


def eager_twin(
    target: Target,
    captured: Replayable,
    batches: Sequence[Inputs],
    *,
    first_seed: int = FIRST_SEED,
) -> Iterator[Footprint]:
    """Run the step on each batch, from the capture's state; yields what each step left behind."""
    captured.start.restore()
    state = memory_of(named_tensors(target.roots).values())
    for index, batch in enumerate(batches):
        inputs = clone_inputs(batch, kept=state)  # the step may write into them
        _seed(first_seed + index)
        with user_code("the step"):
            outputs = target.step(*inputs.args, **inputs.kwargs)
        yield footprint(target.roots, inputs, outputs)


@contextmanager
def assuming_capture(captured: Replayable) -> Iterator[None]:
    """Let code that asks whether it is being captured believe it, while it runs eagerly."""
    device = getattr(captured.graph, "device", None)
    if device is not None and hasattr(device, "assuming_capture"):
        with device.assuming_capture():
            yield
        return
    with Patches() as patches:
        for module in (torch.cuda, torch.cuda.graphs):
            patches.set(module, "is_current_stream_capturing", lambda: True)
        yield


def replay_twin(captured: Replayable, batches: Sequence[Inputs]) -> Iterator[Footprint]:
    """Replay on each batch, from the same state.

    No Python runs between replays, so each yields the same tensors with new values: those that the
    captured run left behind. Raises `InputMismatch` for a batch that the graph cannot be given.
    """
    captured.start.restore()
    for index, batch in enumerate(batches):
        captured.load(batch)
        _seed(FIRST_SEED + index)
        try:
            captured.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:
            first_line = str(error).strip().split("\n", 1)[0]
            raise ReplayFailed(f"replay {index + 1} failed: {first_line}") from error
        yield captured.footprint


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
