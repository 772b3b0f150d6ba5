"""A captured step -> how many calls in a row a measurement may make, and from which state."""

from __future__ import annotations

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
        integers = [
            tensor
            for path, tensor in captured.footprint.tensors.items()
            if not path.startswith(("output", "inputs"))
            and not (tensor.is_floating_point() or tensor.is_complex())
        ]
        before = [tensor.clone() for tensor in integers]
        captured.replay()
        return not all(map(has_same_bits, before, integers))
