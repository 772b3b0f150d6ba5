"""A captured step -> how many calls in a row a measurement may make, and from which state."""

from __future__ import annotations

import torch

from graphdoctor.graphs.compare import has_same_bits
from graphdoctor.graphs.replayable import Replayable
from graphdoctor.measure.wall_clock import Blocks


def blocks_for(captured: Replayable, *, verified_calls: int) -> Blocks:
    """Any number of calls for a step that counts nothing, else as many as its verification made.

    A step counts when a replay changes an integer of its state: a position in a cache, an index
    into a table. Each block then starts from the state of the capture again, which is also what
    this function leaves behind.
    """
    if not _counts(captured):
        return Blocks()
    return Blocks(most_calls=verified_calls, prepare=captured.start.restore)


def _counts(captured: Replayable) -> bool:
    with captured.start.around():
        state = [tensor for path, tensor in captured.footprint.tensors.items() if _is_state(path)]
        integers = [tensor for tensor in state if _is_integer(tensor)]
        before = [tensor.clone() for tensor in integers]
        captured.replay()
        return not all(map(has_same_bits, before, integers))


def _is_state(path: str) -> bool:
    return not path.startswith(("output", "inputs"))


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()
