"""Decides which differences after each step a different order of the same sums explains."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import torch

from graphdoctor.graphs.compare import ULPS, Gap, have_same_bits, values_of
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.target.state.clone import is_overlapping
from graphdoctor.target.state.snapshot import named_tensors, plain_torch

_OPTIMIZER_STATE = re.compile(r"\.state\[(.*)\]\.\w+$")
_BOTH_WAYS = 2.0  # eager moves one way, the other run the other way
_AMPLIFIED = 4.0  # Adam: (1 - beta1) / sqrt(1 - beta2) = 3.2 with its defaults, and with a margin
_SEED = 1  # any number: which elements are rounded up


class OtherRounding:
    """Another algorithm for the same function agrees to half the digits, but where a gradient is 0 in truth.

    Such elements, as of a key's bias in attention, are what rounding leaves of terms that cancel: as large
    as the rounding of the gradients around them, and without one digit of their own. An optimizer that
    normalises gradients moves such a parameter as far as any other, and rounding decides where to.
    """

    def __init__(
        self, expected: Sequence[Footprint], *, eps: float = 0.0, noise: float = 0.0
    ) -> None:
        """`eps` is the rounding of the coarsest product; a tensor has no more digits than that.

        `noise` is how far a gradient of this step may be away from the same step's by eager's own order
        of additions, which is more than a few roundings of the result if a sum has many terms.
        """
        self._expected = expected
        self._eps = eps
        self._noise = noise
        self._largest = largest_gradient_of(expected)

    def beyond(self, gaps: Sequence[Sequence[Gap]]) -> list[list[Gap]]:
        """The differences after each step that are more than half the digits."""
        return [
            [gap for gap in step if not self._coarse(gap).is_within_half_the_digits]
            for step in gaps
        ]

    def aligned(self, runs: Iterable[Footprint]) -> Iterator[Footprint]:
        """What each step left behind, with eager's values where a gradient is noise, or 0 in truth.

        A parameter and its optimizer's state keep theirs where they are farther from eager's than what
        their gradient's own distance does to a step of the optimizer. Where the gradient is 0 in truth, that is
        as far as so many steps of eager move them, or the square of what rounding leaves of a gradient:
        a second moment holds squares, and another run's rounding may be many times eager's.
        """
        for index, seen in enumerate(runs):
            tensors = dict(seen.tensors)
            paths = _by_parameter(tensors)
            for path, relative, rounded in self._rounded(index, seen):
                expected = self._expected[index].tensors[path]
                tensors[path] = _chosen(relative > 0, expected, tensors[path])
                for other in paths[path.removesuffix(".grad")]:
                    self._align(index, other, relative, rounded, tensors)
            yield replace(seen, tensors=tensors)

    def _rounded(
        self, index: int, seen: Footprint
    ) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Gradients that differ by no more than noise somewhere, and where they are 0 in truth.

        Each with its distance from eager's in parts of the larger of both, 0 where that is more than noise.
        """
        pairs = {
            path: (expected, found)
            for path, expected in self._expected[index].tensors.items()
            if path.endswith(".grad")
            and (found := seen.tensors.get(path)) is not None
            and _are_alike(expected, found)
        }
        are_same = have_same_bits(list(pairs.values()))
        for (path, (expected, found)), is_same in zip(pairs.items(), are_same, strict=True):
            if is_same:
                continue
            eps = max(torch.finfo(expected.dtype).eps, self._eps)
            distance = (expected.double() - found.double()).abs()
            larger = torch.maximum(expected.abs(), found.abs())
            digits = eps**0.5 * larger
            noise = min(self._noise, eps**0.5 * self._largest)
            rounded = (distance <= max(ULPS * eps * self._largest, noise)) & (distance > digits)
            near = rounded | ((distance > 0) & (distance <= noise))
            if bool(near.any()):
                yield path, torch.where(near, distance / larger.double(), 0.0), rounded

    def _align(
        self,
        index: int,
        path: str,
        relative: torch.Tensor,
        rounded: torch.Tensor,
        tensors: dict[str, torch.Tensor],
    ) -> None:
        """Give `path` eager's values where the distance of its gradient explains its own."""
        expected = self._expected[index].tensors.get(path)
        if expected is None or not _are_alike(expected, tensors[path], rounded):
            return
        squared = (max(torch.finfo(expected.dtype).eps, self._eps) * self._largest) ** 2
        farthest = max(squared, _BOTH_WAYS * (index + 1) * self._moved(path, rounded))
        follows = _AMPLIFIED * relative * self._moved(path, relative > 0)
        distance = (expected.double() - tensors[path].double()).abs()
        is_near = distance <= torch.where(rounded, farthest, follows)
        tensors[path] = _chosen((relative > 0) & is_near, expected, tensors[path])

    def _moved(self, path: str, where: torch.Tensor) -> float:
        """How far eager moves these elements in a step, at most; 0 where there are none."""
        seen = [each.tensors[path] for each in self._expected if path in each.tensors]
        moves = [
            torch.where(where, (one.double() - other.double()).abs(), 0.0).max()
            for one, other in pairwise(seen)
            if _are_alike(one, other)
        ]
        return max(values_of(moves), default=0.0)

    def _coarse(self, gap: Gap) -> Gap:
        return replace(gap, eps=max(gap.eps, self._eps)) if gap.eps else gap


@contextmanager
def rounded_anew(roots: Mapping[str, object], eps: float = 0.0) -> Iterator[None]:
    """Move each real number of the state up or down by one rounding: `eps`, or its dtype's, of itself."""
    generator = torch.Generator().manual_seed(_SEED)
    with plain_torch():
        for tensor in named_tensors(roots).values():
            if _are_alike(tensor) and not is_overlapping(tensor):
                sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
                rounding = max(torch.finfo(tensor.dtype).eps, eps)
                tensor.detach().addcmul_(tensor.detach(), sign.to(tensor), value=rounding)
    yield


def largest_gradient_of(footprints: Sequence[Footprint]) -> float:
    found = [
        tensor.detach().abs().max().double()
        for seen in footprints
        for path, tensor in seen.tensors.items()
        if path.endswith(".grad") and tensor.numel() and tensor.is_floating_point()
    ]
    return max(values_of(found), default=0.0)


def _are_alike(one: torch.Tensor, *others: torch.Tensor) -> bool:
    """Plain tensors of real numbers, of one shape."""
    plain = one.layout == torch.strided and one.is_floating_point() and one.numel() > 0
    return plain and all(
        other.shape == one.shape and other.layout == torch.strided for other in others
    )


def _chosen(where: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(where, one.detach(), other.detach())


def _by_parameter(paths: Iterable[str]) -> dict[str, list[str]]:
    """By a parameter's path: its own, and those of its optimizer's state."""
    found = defaultdict(list)
    for path in paths:
        state = _OPTIMIZER_STATE.search(path)
        found[state[1] if state is not None else path].append(path)
    return found
