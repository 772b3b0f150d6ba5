"""Give a target inputs with another size of one dimension, such as the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from graphdoctor.target.inputs.draw import drawing_of
from graphdoctor.target.state.clone import memory_of
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.tree import input_leaves, map_inputs
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.errors import UsageError

_SEED = 0x5EE9  # any number: fixed, so that a sweep can be repeated
_WAY_OUT = "let get_inputs() or graphdoctor_target() take batch_size=... and make the inputs there"
_NUMBERS = ("batch_size", "batch")
_MOST_NAMED = 3


class NoBatch(UsageError):
    """The inputs have no dimension that can be made larger or smaller."""


@dataclass(frozen=True, slots=True)
class BatchedInput:
    """A tensor among the inputs, and whether the size of the batch is one of its own."""

    path: str
    shape: tuple[int, ...]
    changes: bool


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which inputs make the batch. `size` is the described one; `notes` say what is doubtful.

    `dim` is the dimension that varies: 0 for a batch, 1 for the length of batched sequences.
    """

    size: int
    inputs: tuple[BatchedInput, ...]
    notes: tuple[str, ...] = ()
    dim: int = 0

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(found.path for found in self.inputs if found.changes)


def find_batch(
    target: Target, described: Inputs, *, dim: int = 0, way_out: str = _WAY_OUT
) -> BatchPlan:
    """The inputs that vary, by agreement: those with the size in `dim` that most of the tensors share.

    Raises NoBatch, with `way_out` as what to do, where the inputs have no such dimension, or where
    repeating rows would break what they mean.
    """
    try:
        return _found_batch(target, described, dim)
    except _NoWay as reason:
        raise NoBatch(f"{reason}: {way_out}.") from None


class _NoWay(Exception):
    """Why there is no batch, without what to do about it."""


def _found_batch(target: Target, described: Inputs, dim: int) -> BatchPlan:
    state = memory_of(named_tensors(target.roots).values())
    tensors = {
        path: tensor
        for path, tensor in _tensors(described)
        if not isinstance(tensor, torch.nn.Parameter) and not memory_of([tensor]) & state
    }
    _refuse_structures(tensors)
    sized = {path: tensor for path, tensor in tensors.items() if tensor.dim() > dim}
    if not sized:
        which = "a dimension that could be the batch" if dim == 0 else f"a dimension {dim}"
        raise _NoWay(f"The step takes no tensor with {which}")
    masks = {path for path, tensor in sized.items() if _is_square_mask(tensor)}
    voters = [tensor for path, tensor in sized.items() if path not in masks] or [*sized.values()]
    # Of equally many, the first counts: Counter keeps the order in which it met them.
    (size, agreeing), *_ = Counter(int(tensor.shape[dim]) for tensor in voters).most_common()
    if size == 0:
        raise _NoWay("The inputs have an empty batch, whose rows cannot be taken")
    of_batch = {p for p, t in sized.items() if t.shape[dim] == size and (p not in masks)}
    changed = of_batch or {p for p, t in sized.items() if t.shape[dim] == size}
    _refuse_rows_with_meaning({path: sized[path] for path in changed}, sized)
    return BatchPlan(
        size,
        tuple(BatchedInput(p, tuple(t.shape), p in changed) for p, t in tensors.items()),
        tuple(_notes(target, size, agreeing, voters)) if dim == 0 else (),
        dim,
    )


def rebatch(target: Target, plan: BatchPlan, size: int) -> Target:
    """The target with fresh inputs of another batch size, on each call.

    Rows of the target's own fresh inputs are left out or repeated, all inputs in the same way, so
    that a label stays with its sample. A repeated row of numbers gets values of its own; integers,
    which may be indices, stay repeated.
    """
    if size == plan.size:
        return target
    generator = torch.Generator().manual_seed(_SEED)
    return replace(
        target, fresh_inputs=lambda: rebatched(target.fresh_inputs(), plan, size, generator)
    )


def rebatched(
    inputs: Inputs, plan: BatchPlan, size: int, generator: torch.Generator | None = None
) -> Inputs:
    """These inputs, which are of the plan's size, at another: in memory of their own, where they vary."""
    drawn = generator if generator is not None else torch.Generator().manual_seed(_SEED)
    made: dict[int, object] = {}
    for path, leaf in input_leaves(inputs).items():
        if isinstance(leaf, torch.Tensor) and path in plan.paths:
            rows = batch_rows(leaf.movedim(plan.dim, 0), size, generator=drawn)
            made.setdefault(id(leaf), rows.movedim(0, plan.dim))
    changed = map_inputs(lambda leaf: made.get(id(leaf), leaf), inputs)
    return Inputs(
        changed.args,
        {
            name: size if name in _NUMBERS and type(value) is int and value == plan.size else value
            for name, value in changed.kwargs.items()
        },
    )


def shapes_of(inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor among the inputs, by path."""
    return {path: tuple(tensor.shape) for path, tensor in _tensors(inputs)}


def _tensors(inputs: Inputs) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in input_leaves(inputs).items():
        if isinstance(leaf, torch.Tensor):
            yield path, leaf


def _refuse_structures(tensors: dict[str, torch.Tensor]) -> None:
    """Inputs whose batch is no dimension of a tensor, or no plain tensor's."""
    for path, tensor in tensors.items():
        if path.endswith(".batch_sizes"):
            raise _NoWay(
                f"{path.removesuffix('.batch_sizes')} is a packed sequence, which holds its batch"
                " in its lengths"
            )
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise _NoWay(f"{path} is not a dense tensor, so its rows cannot be repeated")
    if tensors and all(
        path.endswith("]") and path.count("[") > 1 and t.dim() == 3 and t.shape[0] in (1, 3, 4)
        for path, t in tensors.items()
    ):
        raise _NoWay(
            "The inputs are a list of images, whose number is the batch and not a dimension"
        )


def _refuse_rows_with_meaning(
    changed: dict[str, torch.Tensor], every: dict[str, torch.Tensor]
) -> None:
    """Offsets of bags point into another input, whose length would have to change as well."""
    lengths = [int(t.shape[0]) for p, t in every.items() if t.dim() == 1 and p not in changed]
    for path, tensor in changed.items():
        if _are_offsets(tensor) and any(length >= int(tensor[-1]) for length in lengths):
            raise _NoWay(
                f"{path} looks like offsets into another input, whose length would have to change"
                " with the batch"
            )


def _are_offsets(tensor: torch.Tensor) -> bool:
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex():
        return False
    if tensor.dtype is torch.bool or tensor.numel() < 2 or int(tensor[0]) != 0:
        return False
    return bool((tensor.diff() >= 0).all()) and int(tensor[-1]) > 0


def _is_square_mask(tensor: torch.Tensor) -> bool:
    """A causal mask: its size is the length of the sequence, whatever the batch is."""
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1] or tensor.shape[0] < 2:
        return False
    return bool((tensor == tensor.tril()).all()) or bool((tensor == tensor.triu()).all())


def _notes(target: Target, size: int, agreeing: int, voters: list[torch.Tensor]) -> Iterator[str]:
    if agreeing * 2 <= len(voters) and len(voters) > 1:
        seen = ", ".join(str(n) for n in dict.fromkeys(int(t.shape[0]) for t in voters))
        yield (
            f"the leading dimensions of the inputs disagree ({seen}); {size} was used as the"
            " batch size"
        )
    held = held_batches(target, size) if size > 1 else ""
    if held:
        yield (
            f"state with {size} rows at every batch size: {held}; where it was made for the"
            " described batch, the step fails at others, or does not mean what it did"
        )


def held_batches(target: Target, size: int) -> str:
    """State that may have been made for a batch of this size: "model.cache (8x16x64)"; or "".

    Neither parameters nor what has the shape of one, such as an optimizer's averages.
    """
    state = named_tensors(target.roots)
    shapes = {t.shape for t in state.values() if isinstance(t, torch.nn.Parameter)}
    held = [
        f"{path} ({'x'.join(map(str, tensor.shape))})"
        for path, tensor in state.items()
        if tensor.dim() > 1 and tensor.shape[0] == size and tensor.shape not in shapes
    ]
    more = f" and {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
    return ", ".join(held[:_MOST_NAMED]) + more


def batch_rows(tensor: torch.Tensor, size: int, *, generator: torch.Generator) -> torch.Tensor:
    """So many rows: in their order, repeated or left out evenly, so that what is sorted stays so.

    Repeated rows of floating numbers get values of their own, like the others. Order of the
    dimensions in memory, device, pinning and `requires_grad` are the tensor's.
    """
    with torch.no_grad():
        if tensor.stride(0) == 0:  # one row that stands for all
            made = tensor.detach()[:1].clone().expand(size, *tensor.shape[1:])
        else:
            order = sorted(range(tensor.dim()), key=lambda dim: tensor.stride(dim), reverse=True)
            back = [order.index(dim) for dim in range(tensor.dim())]
            rows = _rows(tensor.shape[0], size).to(tensor.device)
            laid_out = tensor.detach().permute(order)
            made = laid_out.index_select(order.index(0), rows).permute(back)
        if tensor.is_floating_point() and size > tensor.shape[0] and made.stride(0):
            _draw_repeated(made, tensor.shape[0], generator)
        if tensor.device.type == "cpu" and tensor.is_pinned():
            made = made.pin_memory()
    return made.detach().requires_grad_(tensor.requires_grad)


def _rows(old: int, new: int) -> torch.Tensor:
    """Which row each new one is: the first stays the first, and none goes before its neighbour."""
    return torch.arange(new) * old // new


def _draw_repeated(made: torch.Tensor, old: int, generator: torch.Generator) -> None:
    draw = drawing_of(made.detach().clone().cpu())
    if draw is None:
        return
    rows = _rows(old, made.shape[0])
    repeated = torch.nonzero(rows[1:] == rows[:-1]).flatten() + 1
    drawn = draw(generator).index_select(0, repeated)
    made[repeated.to(made.device)] = drawn.to(made.device)
