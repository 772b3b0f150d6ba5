"""A recording -> the first causes of differences between its iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from graphdoctor.rules.causes.align import Pair, align
from graphdoctor.rules.causes.difference import Difference
from graphdoctor.rules.causes.pair import Comparison
from graphdoctor.rules.causes.reads import dropout_seeding
from graphdoctor.rules.causes.sources import Source, sources_of
from graphdoctor.rules.rule import once
from graphdoctor.values.recording import Iteration, Recording


class Found(Struct, frozen=True):
    """A difference between two iterations, by their indices."""

    first: int
    second: int
    difference: Difference
    source: Source | None  # what the host read or drew that explains it


@once
def differences(recording: Recording) -> tuple[Found, ...]:
    """Every first cause in every pair of compared iterations, in execution order."""
    sources = sources_of(recording)
    found: list[Found] = []
    for first, second in _pairs(recording):
        pairs = _without_seeding(align(first.ops, second.ops), first, second)
        # New addresses may be a last trace of initialization, which does not come back.
        may_settle = first is recording.captured[0] and len(recording.captured) > 2
        comparison = Comparison(first, second, may_settle=may_settle)
        for difference in comparison.run(pairs):
            source = difference.source_among(sources)
            found.append(Found(first.index, second.index, difference, source))
    return tuple(_without_echoes(found))


def _without_seeding(
    pairs: Sequence[Pair], first: Iteration, second: Iteration
) -> tuple[Pair, ...]:
    """Leave out what only one of both does because the recording put the generator's state back."""
    alone = dropout_seeding(first), dropout_seeding(second)
    if not any(alone):
        return tuple(pairs)
    return tuple(
        (one, other)
        for one, other in pairs
        if not ((other is None and one in alone[0]) or (one is None and other in alone[1]))
    )


def _without_echoes(found: list[Found]) -> Iterator[Found]:
    """Leave out backward passes that differ because an earlier iteration went another way.

    Gradients that one iteration leaves behind are added to by the next: after an optimizer step
    that was skipped, the backward pass runs more operators.
    """
    branches = any(one.difference.kind == "operators" and one.difference.sure for one in found)
    for one in found:
        inner = one.difference
        is_echo = inner.kind == "operators" and inner.op.phase == "backward" and not inner.sure
        if not (branches and is_echo):
            yield one


def _pairs(recording: Recording) -> Iterator[tuple[Iteration, Iteration]]:
    """Consecutive iterations whose inputs have equal shapes: others may well differ."""
    by_shapes: dict[tuple[object, ...], list[Iteration]] = {}
    for iteration in recording.captured:
        by_shapes.setdefault(iteration.input_shapes, []).append(iteration)
    for alike in by_shapes.values():
        yield from pairwise(alike)
