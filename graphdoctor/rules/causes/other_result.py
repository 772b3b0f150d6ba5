"""The outputs of an eager and of a captured iteration -> those that hold another result."""

from __future__ import annotations

import math

from msgspec import Struct

from graphdoctor.values.recording import Iteration, Leaf, Sample


class OtherResult(Struct, frozen=True):
    """One output of both runs. `values` are the two, of eager and captured, that lie furthest apart."""

    eager: Leaf
    captured: Leaf
    values: tuple[float, float] | None  # None: it has another size

    def sentence(self) -> str:
        if self.values is None:
            return f"{self.captured.path} then has another size than in eager."
        was, now = self.values
        return (
            f"{self.captured.path} then is not what eager computes: {now:.4g} instead of {was:.4g}."
        )


def other_results(eager: Iteration, captured: Iteration) -> list[OtherResult]:
    """Outputs of one path that differ by more than another algorithm for the same function may."""
    before = {leaf.path: leaf for leaf in eager.outputs}
    found = (
        _other_result(before[leaf.path], leaf) for leaf in captured.outputs if leaf.path in before
    )
    return [result for result in found if result is not None]


def _other_result(eager: Leaf, captured: Leaf) -> OtherResult | None:
    one, other = eager.sample, captured.sample
    if one is None or other is None:
        return None
    if len(one.values) != len(other.values):
        return OtherResult(eager, captured, None)
    pairs = list(zip(one.values, other.values, strict=True))
    widest = max(pairs, key=_distance)
    is_near = _distance(widest) <= _allowed(one, other)
    return None if is_near else OtherResult(eager, captured, widest)


def _allowed(one: Sample, other: Sample) -> float:
    """Half the digits of the dtype, in relation to the tensor's largest magnitude."""
    return math.sqrt(max(one.eps, other.eps)) * max(one.scale, other.scale)


def _distance(pair: tuple[float, float]) -> float:
    """0.0 of equal values, NaN and infinities included; without bound if only one is finite."""
    one, other = pair
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    distance = abs(one - other)
    return math.inf if math.isnan(distance) else distance
