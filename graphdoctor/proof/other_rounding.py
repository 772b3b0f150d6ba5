"""What eager left behind after each step -> which differences another algorithm for the same function explains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint

_OPTIMIZER_STATE = re.compile(r"\.state\[(.*)\]\.\w+$")
_BOTH_WAYS = 2.0  # eager moves one way, the other run the other way


class OtherRounding:
    """Another algorithm agrees to half the digits, but for gradients whose true value is 0.

    Such a gradient, as of a key's bias in attention, is what rounding leaves of terms that cancel: as
    large as the rounding of the gradients around it, and without one digit of its own. An optimizer that
    normalises gradients moves such a parameter as far as any other, and rounding decides where to.
    """

    def __init__(self, expected: Sequence[Footprint], *, eps: float = 0.0) -> None:
        """`eps` is the rounding of the coarsest product; a tensor has no more digits than that."""
        self._expected = expected
        self._eps = eps
        self._largest = largest_gradient_of(expected)

    def beyond(self, gaps: Sequence[Sequence[Gap]]) -> list[list[Gap]]:
        """The differences after each step that it does not explain."""
        return [
            [gap for gap in step if not self._coarse(gap).is_within_half_the_digits]
            for step in self.beyond_zero_gradients(gaps)
        ]

    def beyond_zero_gradients(self, gaps: Sequence[Sequence[Gap]]) -> list[list[Gap]]:
        """Those that do not follow from a gradient whose true value is 0."""
        return [list(self._beyond_zero(index, step)) for index, step in enumerate(gaps)]

    def _beyond_zero(self, index: int, step: Sequence[Gap]) -> Iterator[Gap]:
        rounded = {gap.path for gap in step if self._is_rounded_gradient(self._coarse(gap))}
        for gap in step:
            is_of_such = f"{_parameter_of(gap.path)}.grad" in rounded
            if gap.path not in rounded and not (is_of_such and self._is_a_move(index, gap)):
                yield gap

    def _coarse(self, gap: Gap) -> Gap:
        return replace(gap, eps=max(gap.eps, self._eps)) if gap.eps else gap

    def _is_rounded_gradient(self, gap: Gap) -> bool:
        if not gap.path.endswith(".grad") or not gap.is_measurable:
            return False
        return not gap.is_within_half_the_digits and gap.max_abs <= gap.eps * self._largest

    def _is_a_move(self, index: int, gap: Gap) -> bool:
        """Whether it is no more than eager itself moves this tensor by in so many steps."""
        moved = max(
            (
                _distance(one.tensors, other.tensors, gap.path)
                for one, other in zip(self._expected, self._expected[1:], strict=False)
            ),
            default=0.0,
        )
        return gap.is_measurable and gap.max_abs <= _BOTH_WAYS * (index + 1) * moved


def largest_gradient_of(footprints: Sequence[Footprint]) -> float:
    largest = 0.0
    for seen in footprints:
        for path, tensor in seen.tensors.items():
            if path.endswith(".grad") and tensor.numel() and tensor.is_floating_point():
                largest = max(largest, float(tensor.abs().max()))
    return largest


def _parameter_of(path: str) -> str:
    state = _OPTIMIZER_STATE.search(path)
    return state[1] if state is not None else path


def _distance(
    one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], path: str
) -> float:
    """0.0 where one of the two has no such tensor, or another shape."""
    before, after = one.get(path), other.get(path)
    if before is None or after is None or before.shape != after.shape or not before.numel():
        return 0.0
    return float((before.double() - after.double()).abs().max())
