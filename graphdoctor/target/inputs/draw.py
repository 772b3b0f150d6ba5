"""Draw values as valid as given ones: of equal range, density, order, and properties such as symmetry."""

from __future__ import annotations

from collections.abc import Callable

import torch

# A positive definite matrix, probabilities or directions are valid together, and not number by number.

Adjust = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_FEWEST = 4  # numbers in a row: fewer may be in order by chance
_NEAR = 1e-3  # as far as half precision is from a sum or a norm of one


def adjustment_for(values: torch.Tensor) -> Adjust | None:
    """What gives drawn values the property that these (floating, finite, on the CPU) have; None: none."""
    if values.dim() == 0:
        return None
    wide = values.double()
    is_square = wide.dim() > 1 and wide.shape[-1] == wide.shape[-2] and wide.shape[-1] > 1
    if is_square and torch.allclose(wide, wide.mT, rtol=1e-4, atol=1e-6):
        if (torch.linalg.eigvalsh(wide) > 0).all():
            return _scaled(values)
        return lambda drawn, _: (drawn + drawn.mT) / 2
    if wide.shape[-1] < 2:
        return None
    if bool((wide >= 0).all()) and bool(((wide.sum(-1) - 1).abs() < _NEAR).all()):
        return lambda drawn, _: drawn / drawn.sum(-1, keepdim=True).clamp(min=_NEAR)
    if bool(((wide.norm(dim=-1) - 1).abs() < _NEAR).all()):
        return lambda drawn, _: torch.nn.functional.normalize(drawn, dim=-1)
    if wide.shape[-1] >= _FEWEST and bool((wide.diff(dim=-1) >= 0).all()):
        return lambda drawn, _: drawn.sort(dim=-1).values
    if wide.shape[-1] >= _FEWEST and bool((wide.diff(dim=-1) <= 0).all()):
        return lambda drawn, _: drawn.sort(dim=-1, descending=True).values
    return None


def _scaled(values: torch.Tensor) -> Adjust:
    """D A D with a positive diagonal D: positive definite where A is, whatever was drawn."""

    def adjust(drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        size = values.shape[:-1]
        by = torch.rand(size, generator=generator, dtype=torch.float64) * 0.4 + 0.8
        return (values.double() * by.unsqueeze(-1) * by.unsqueeze(-2)).to(values.dtype)

    return adjust


Draw = Callable[[torch.Generator], torch.Tensor]
_WIDEST_RECORD = 4  # numbers that belong together in a row: a grid, a box, a pair


def drawing_of(values: torch.Tensor) -> Draw | None:
    """How to draw values like these (a CPU tensor); None where they must stay as they are."""
    if values.numel() == 0 or values.is_complex() or values.is_quantized:
        return None
    if values.dtype is torch.bool:
        return _mask(values, values)
    if values.is_floating_point():
        return _floats(values)
    return _integers(values)


def _floats(values: torch.Tensor) -> Draw | None:
    wide = values if values.dtype is torch.float64 else values.float()
    low, high = wide.min(), wide.max()
    if bool(wide.isnan().any()) or bool(low == high):
        return None
    if wide.numel() > 2 and bool(((wide == low) | (wide == high)).all()):
        return _mask(values, wide == high)
    if not bool(low.isfinite() & high.isfinite()):
        return _resampled(values)
    is_one_sided = bool(low >= 0) or bool(high <= 0)
    draw = _uniform(values, float(low), float(high)) if is_one_sided else _normal(values, wide)
    adjust = adjustment_for(values)
    return draw if adjust is None else lambda generator: adjust(draw(generator), generator)


def _uniform(values: torch.Tensor, low: float, high: float) -> Draw:
    shape, dtype = values.shape, values.dtype

    def draw(generator: torch.Generator) -> torch.Tensor:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
        return drawn.clamp(low, high).to(dtype)

    return draw


def _normal(values: torch.Tensor, wide: torch.Tensor) -> Draw:
    shape, dtype = values.shape, values.dtype
    low, high = float(wide.min()), float(wide.max())
    deviation, mean = (float(part) for part in torch.std_mean(wide))

    def draw(generator: torch.Generator) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=wide.dtype) * deviation + mean
        return drawn.clamp(low, high).to(dtype)

    return draw


def _integers(values: torch.Tensor) -> Draw | None:
    wide = values.to(torch.int64)
    low, high = int(wide.min()), int(wide.max())
    if low == high or is_order(wide):
        return None
    if wide.dim() == 1 and wide.numel() > 2 and bool((wide.diff() >= 0).all()):
        return _offsets(wide, values.dtype)
    if (low, high) == (0, 1):
        return _mask(values, wide == 1)
    if low < 0:
        # Negative numbers among others are marks, such as -100 for a label to ignore.
        return _resampled(values)
    shape, dtype = values.shape, values.dtype
    return lambda generator: torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def is_order(values: torch.Tensor) -> bool:
    """Positions, a permutation, or descending lengths: values that other inputs are ordered by."""
    if values.dim() == 0:
        return False
    steps = values.diff(dim=-1)
    if steps.numel() and bool((steps == steps.flatten()[0]).all()) and bool(steps.any()):
        return True
    if values.dim() > 1 or values.numel() < 3:
        return False
    is_permutation = torch.equal(values.sort().values, torch.arange(values.numel()))
    return is_permutation or bool((steps <= 0).all())


def _offsets(wide: torch.Tensor, dtype: torch.dtype) -> Draw:
    """Sorted, with the first and last kept: offsets of bags, cumulated lengths, batch numbers."""
    first, last, inner = int(wide[0]), int(wide[-1]), wide.numel() - 2
    is_strict = bool((wide.diff() > 0).all())

    def draw(generator: torch.Generator) -> torch.Tensor:
        if is_strict:
            between = torch.randperm(last - first - 1, generator=generator)[:inner] + first + 1
        else:
            between = torch.randint(first, last + 1, (inner,), generator=generator)
        ends = torch.tensor([first]), torch.tensor([last])
        return torch.cat([ends[0], between.sort().values, ends[1]]).to(dtype)

    return draw


def _resampled(values: torch.Tensor) -> Draw:
    """Observed values in new places."""
    observed, shape = values.flatten().clone(), values.shape

    def draw(generator: torch.Generator) -> torch.Tensor:
        return observed[torch.randint(observed.numel(), shape, generator=generator)]

    return draw


def _mask(values: torch.Tensor, is_set: torch.Tensor) -> Draw | None:
    """Two values: the same density, and no row left without what every row had one of before."""
    if bool(is_set.all()) or not bool(is_set.any()) or _is_triangular(is_set):
        return None
    on, off = values[is_set][0], values[~is_set][0]
    if is_set.dim() > 0 and is_set.shape[-1] > 2 and bool((is_set.sum(-1) == 1).all()):
        return lambda generator: torch.where(_one_hot_like(is_set, generator), on, off)
    density = float(is_set.float().mean())

    def draw(generator: torch.Generator) -> torch.Tensor:
        drawn = torch.rand(is_set.shape, generator=generator) < density
        if is_set.dim():
            drawn = _with_at_least_one(drawn, is_set.any(-1), generator)
            drawn = ~_with_at_least_one(~drawn, (~is_set).any(-1), generator)
            drawn = _ordered_like(drawn, is_set)
        return torch.where(drawn, on, off)

    return draw


def _one_hot_like(is_set: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    width = is_set.shape[-1]
    place = torch.randint(width, is_set.shape[:-1], generator=generator).unsqueeze(-1)
    return torch.arange(width) == place


def _is_triangular(mask: torch.Tensor) -> bool:
    """A causal mask: it says what may be seen from where, and is the same for all inputs."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 3:
        return False
    full = torch.ones_like(mask)
    shapes = (full.tril(), full.triu(), full.tril(-1), full.triu(1))
    return any(torch.equal(mask, shape) for shape in shapes)


def _with_at_least_one(
    drawn: torch.Tensor, rows: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    width = drawn.shape[-1]
    place = torch.randint(width, rows.shape, generator=generator).unsqueeze(-1)
    missing = (rows & ~drawn.any(-1)).unsqueeze(-1)
    return drawn | (missing & (torch.arange(width) == place))


def _ordered_like(drawn: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Padding masks keep their shape: all ones of a row on one side."""
    numbers = mask.to(torch.int8)
    steps = numbers.diff(dim=-1)
    if bool((steps <= 0).all()):
        return drawn.to(torch.int8).sort(dim=-1, descending=True).values.bool()
    if bool((steps >= 0).all()):
        return drawn.to(torch.int8).sort(dim=-1).values.bool()
    return drawn


def rearranging_of(values: torch.Tensor) -> Draw | None:
    """How to draw these numbers (a CPU tensor of integers or bools) in other places; None where none is.

    Ids with marks among them, grids and lengths are valid for what they count or mark, so that numbers
    drawn from their range are often none that anybody would pass. The same numbers elsewhere mostly are.
    """
    if values.is_floating_point() or values.is_complex() or values.is_quantized:
        return None
    if values.numel() < 2 or values.dim() == 0:
        return None
    if values.dim() == 1:
        is_sorted = values.dtype is torch.bool or bool((values.diff() >= 0).all())
        return None if is_sorted or is_order(values.long()) else _rows(values)
    is_mask = int(values.unique().numel()) <= 2
    if is_mask or values.shape[-1] <= _WIDEST_RECORD:
        return _rows(values) if values.shape[0] > 1 else None
    return _words(values)


def _rows(values: torch.Tensor) -> Draw:
    kept = values.clone()
    return lambda generator: kept[torch.randperm(kept.shape[0], generator=generator)]


def _words(values: torch.Tensor) -> Draw | None:
    """Marks stay: what repeats side by side, as image tokens and padding do, and the first and last id."""
    flat, is_repeated = values.flatten().clone(), values[..., 1:] == values[..., :-1]
    ends = torch.stack([flat.min(), flat.max()])
    marks = torch.cat([values[..., 1:][is_repeated], ends])
    places = (~torch.isin(flat, marks)).nonzero().flatten()
    if flat[places].unique().numel() < 2:
        return None

    def draw(generator: torch.Generator) -> torch.Tensor:
        drawn = flat.clone()
        drawn[places] = flat[places[torch.randperm(places.numel(), generator=generator)]]
        return drawn.view(values.shape)

    return draw
