"""The iterations of a recording -> the operators of the last one that work on other shapes in another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdoctor.rules.causes.align import align
from graphdoctor.values.recording import Iteration, Op

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Varying:
    """Operators by index, of which a CUDA graph would hold one of several shapes.

    `by_inputs`: the shapes of the step's inputs vary too. Otherwise the shapes come from its state or from values.
    """

    ops: frozenset[int] = frozenset()
    by_inputs: bool = False


def varying_shapes(iterations: Sequence[Iteration]) -> Varying:
    """What the last iteration does with shapes that another one does not have there."""
    *others, last = iterations
    ops = frozenset(
        last.ops[mine].index
        for other in others
        for theirs, mine in align(other.ops, last.ops)
        if theirs is not None and mine is not None
        if _shapes(other.ops[theirs]) != _shapes(last.ops[mine])
    )
    return Varying(ops, len({one.input_shapes for one in iterations}) > 1)


def _shapes(op: Op) -> _Shapes:
    return tuple(use.shape for use in (*op.inputs, *op.outputs))
