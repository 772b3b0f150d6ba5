"""An eager and a captured iteration in, the operators of both that draw other random numbers out."""

from __future__ import annotations

from graphdoctor.operators import draws
from graphdoctor.rules.causes.difference import changes_between, shapes_of
from graphdoctor.values.recording import Iteration, Op


def other_draws(eager: Iteration, captured: Iteration) -> tuple[frozenset[int], frozenset[int]]:
    """Their indices in either iteration; none where both draw the same in the same order.

    One that draws more, or otherwise, shifts the numbers of all that draw after it from the same
    generator. That of the host and that of the device are two.
    """
    found: tuple[set[int], set[int]] = (set(), set())
    for on_device in (True, False):
        sides = [
            [op for op in iteration.ops if op.is_cuda == on_device and draws(op)]
            for iteration in (eager, captured)
        ]
        pairs = list(zip(*sides, strict=False))
        same = next((at for at, pair in enumerate(pairs) if not _is_same(*pair)), len(pairs))
        for indices, drawing in zip(found, sides, strict=True):
            indices.update(op.index for op in drawing[same:])
    return frozenset(found[0]), frozenset(found[1])


def _is_same(one: Op, other: Op) -> bool:
    """Whether both draw the same numbers from a generator in the same state."""
    return (
        one.name == other.name
        and shapes_of((*one.inputs, *one.outputs)) == shapes_of((*other.inputs, *other.outputs))
        and not any(changes_between(one, other))
    )
