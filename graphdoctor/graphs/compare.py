"""Compare two tensors that should be equal: how far they differ, and whether the difference is noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphdoctor.target.state.saved_tensor import lies_on_cpu
from graphdoctor.target.state.snapshot import plain_torch

ULPS = 4  # rounding that a different order of the same additions may cost
_NOISE_FACTOR = 4.0  # how far beyond what eager was seen to deviate from itself is still noise
_LARGEST_DRIFT = 0.01  # of a tensor's magnitude


@dataclass(frozen=True, slots=True)
class Gap:
    """Where one tensor, or value, of two runs differs.

    `max_abs` is the largest distance of two elements, `max_rel` the largest in relation to the
    larger of the two (0 to 2); elements that are not finite on one side count in `detail` only,
    since a distance to them is no number. `scale` is the largest magnitude in the whole tensor,
    `eps` the dtype's rounding (0.0 for integers).
    """

    path: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    detail: str = ""
    scale: float = 0.0
    eps: float = 0.0

    @property
    def is_in_output(self) -> bool:
        """Whether it is what the step returns, and not what it leaves behind."""
        return self.path.startswith("output")

    @property
    def is_measurable(self) -> bool:
        """Whether the two differ by a distance, and not in kind."""
        return not self.detail

    @property
    def is_rounding(self) -> bool:
        """No more than a few units in the last place of the tensor's largest element."""
        return self.is_measurable and self.max_abs <= ULPS * self.eps * self.scale

    @property
    def is_within_half_the_digits(self) -> bool:
        """What another algorithm for the same function may differ by, even after a few steps."""
        return self.is_measurable and self.max_abs <= self.eps**0.5 * self.scale

    @property
    def is_small(self) -> bool:
        """What moves by more than a hundredth of itself is not merely rounded in another order."""
        return self.is_measurable and self.max_abs <= _LARGEST_DRIFT * self.scale


def has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Cheaper than `gap_between`; a NaN equals only one of the same payload."""
    is_together = one.device == other.device  # which an emulated device answers
    with plain_torch():
        return is_together and _have_same_parts(one, other)


def _have_same_parts(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    parts, others = _parts(one), _parts(other)
    return len(parts) == len(others) and all(map(_has_same_bits, parts, others))


def _has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    one, other = _dense(one), _dense(other)
    return one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def have_same_bits(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """`has_same_bits` of each pair; the host waits once for all that lie on a GPU, and not for each."""
    found: list[bool | None] = []
    asked: list[torch.Tensor] = []
    are_together = [one.device == other.device for one, other in pairs]  # as emulation has it
    with plain_torch():
        for (one, other), is_together in zip(pairs, are_together, strict=True):
            on_gpu = _is_plain_on_gpu(one) and _is_plain_on_gpu(other)
            if not is_together:
                found.append(False)
            elif on_gpu and one.shape == other.shape and one.dtype == other.dtype:
                asked.append((_bits(_dense(one)) != _bits(_dense(other))).any())
                found.append(None)
            else:
                found.append(_have_same_parts(one, other))
    differ = iter(values_of(asked))
    return [not next(differ) if same is None else same for same in found]


def _is_plain_on_gpu(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_nested or lies_on_cpu(tensor):
        return False
    return tensor.is_cuda and _parts(tensor)[0] is tensor


def values_of(scalars: Sequence[torch.Tensor]) -> list[Any]:
    """Tensors of one dtype without dimensions, on one device or several: one wait for each device."""
    by_device: dict[torch.device, list[int]] = {}
    for index, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, []).append(index)
    found: dict[int, Any] = {}
    with plain_torch():
        for places in by_device.values():
            values = torch.stack([scalars[place] for place in places]).tolist()
            found.update(zip(places, values, strict=True))
    return [found[index] for index in range(len(scalars))]


def dense_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as integers of the same bits, whatever its layout."""
    return _bits(_dense(tensor))


def gap_between(path: str, expected: torch.Tensor, actual: torch.Tensor) -> Gap | None:
    """None where both have the same bits; NaN equals NaN, whatever its payload."""
    devices = expected.device, actual.device  # which an emulated device answers
    with plain_torch():
        parts, others = _parts(expected), _parts(actual)
        if len(parts) > 1 and len(parts) == len(others):
            gaps = (gap_between(path, *pair) for pair in zip(parts, others, strict=True))
            return max(
                filter(None, gaps),
                key=lambda gap: (not gap.is_measurable, gap.max_rel),
                default=None,
            )
        for what, wanted, found in (
            ("shape", tuple(expected.shape), tuple(actual.shape)),
            ("dtype", expected.dtype, actual.dtype),
            ("device", *devices),
        ):
            if wanted != found:
                return Gap(path, detail=f"{what} {wanted} in eager, {found} in the replay")
        if len(parts) != len(others):
            return Gap(
                path, detail=f"{len(parts)} inner tensors in eager, {len(others)} in the replay"
            )
        return _gap_of_values(path, _dense(parts[0]), _dense(others[0]))


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor itself, or those that a subclass wraps: its own operators may look at some of them only."""
    tensor = local_part(tensor)
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def _gap_of_values(path: str, expected: torch.Tensor, actual: torch.Tensor) -> Gap | None:
    if torch.equal(_bits(expected), _bits(actual)):  # by far the most common; one pass over both
        return None
    differs = _bits(expected) != _bits(actual)
    if expected.is_floating_point():
        differs &= ~(expected.isnan() & actual.isnan())
    wanted, found = expected[differs], actual[differs]
    return _measure(path, wanted, found, whole=expected) if wanted.numel() else None


def _measure(
    path: str, expected: torch.Tensor, actual: torch.Tensor, *, whole: torch.Tensor
) -> Gap:
    """The host reads all figures at once: each wait for a GPU takes longer than the arithmetic."""
    eps = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
    wide, other = expected.double(), actual.double()
    distance = (wide - other).abs()
    larger = torch.maximum(wide.abs(), other.abs()).clamp(min=torch.finfo(torch.float64).tiny)
    magnitudes = (distance, distance / larger, whole.double().abs())
    figures = [each.nan_to_num(0.0, posinf=0.0).max() for each in magnitudes]
    odd_elements = (~(wide.isfinite() & other.isfinite())).sum().double()
    max_abs, max_rel, scale, odd = torch.stack([*figures, odd_elements]).tolist()
    detail = f"not finite on one side in {odd:.0f} elements" if odd else ""
    return Gap(path, max_abs, max_rel, detail, scale, eps)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a distributed tensor: ranks compare their own parts."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = local_part(tensor).detach()
    if tensor.is_quantized:
        return tensor.dequantize()  # equal integers of two scales are other values
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_SAME_SIZE[tensor.element_size()]) if tensor.is_floating_point() else tensor


def is_noise(gap: Gap, drifts: Iterable[Gap]) -> bool:
    """Whether a gap is explained by how far two runs of the same code drift apart.

    It is, when the same tensor drifts too, by more than a fraction of the gap, and by little beside
    its own magnitude.
    """
    drift = max((d.max_abs for d in drifts if d.path == gap.path and d.is_small), default=0.0)
    return gap.is_measurable and is_as_far(gap, drift)


def is_as_far(gap: Gap, drift: float) -> bool:
    """Whether a run of the same code that was seen to be `drift` away may well be this far away."""
    return gap.max_abs <= _NOISE_FACTOR * drift
