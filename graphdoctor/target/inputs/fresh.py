"""What describes the inputs -> a function that gives fresh ones on each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from torch.utils.data import DataLoader

from graphdoctor.target.inputs.redraw import Redraw, tensors_of
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.target import Inputs, Variation
from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import UsageError

_MOST_BATCHES = 8  # more than the iterations of an analysis by default

STREAMS = (Iterator, DataLoader)  # what gives one batch after the other, such as a generator
_NONE_LEFT = object()

Fresh = Callable[[], Inputs]


def to_inputs(value: object, *, what: str) -> Inputs:
    """Read what a function for inputs gave: a list or tuple of arguments, a dict, one tensor."""
    if isinstance(value, torch.Tensor):
        return Inputs((value,))
    if isinstance(value, Inputs):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return Inputs((), dict(value))
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple):
        args, kwargs = value
        if isinstance(kwargs, dict) and all(isinstance(key, str) for key in kwargs):
            return Inputs(args, kwargs)
    if isinstance(value, (list, tuple)):
        return Inputs(tuple(value))
    raise UsageError(
        f"{what} returned {_article(value)}, but inputs are a list or tuple of arguments, "
        f"a dict of keyword arguments, or one tensor"
    )


def _article(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


class Called:
    """Fresh inputs from the user's own function, which is called again each time.

    A generator function, or one that makes a loader, is called again once its batches have run out.
    """

    def __init__(self, make: Callable[[], object], *, what: str) -> None:
        self._make = make
        self._batches: Iterator[object] = iter(())
        self.what = what

    def __call__(self) -> Inputs:
        with user_code(self.what):
            made = next(self._batches, _NONE_LEFT)
            if made is _NONE_LEFT:
                made = self._make()
            if isinstance(made, STREAMS):
                self._batches = iter(made)
                made = next(self._batches, _NONE_LEFT)
        if made is _NONE_LEFT:
            raise UsageError(f"{self.what} gave no batch")
        return to_inputs(made, what=self.what)


def in_turn(batches: Iterable[object], *, what: str) -> Inputs | Called:
    """The user's own batches, the first few of them, one after the other and then again; one is inputs."""
    with user_code("reading the batches"):
        found = [to_inputs(batch, what=what) for batch in islice(batches, _MOST_BATCHES)]
    if not found:
        raise UsageError(f"{what} gave no batch")
    if len(found) == 1:
        return found[0]
    turn = cycle(found)
    return Called(lambda: clone_inputs(next(turn)), what="the given batches")


@dataclass(frozen=True, slots=True)
class Supply:
    """Fresh inputs on each call of `make`; `described` are those of the first call."""

    described: Inputs
    make: Fresh
    notes: tuple[str, ...] = ()

    @property
    def variation(self) -> Variation | None:
        return self.make if isinstance(self.make, Redraw) else None


def supply(source: Inputs | Called, *, kept: Collection[int] = ()) -> Supply:
    """Where fresh inputs come from: the user's function, or other values like the given ones.

    `kept` are ids of tensors that belong to the step's state.
    """
    if isinstance(source, Inputs):
        return Supply(source, Redraw(source, kept=kept))
    first, second = source(), source()
    if _have_same_values(first, second):
        note = (
            f"{source.what} gives the same values each time (it may set a seed), so other values "
            "of the same shapes and ranges are used after the first call"
        )
        return Supply(first, Redraw(first, kept=kept), (note,))
    return Supply(first, _Ahead([first, second], source))


class _Ahead:
    """Gives out what was already made, then makes more."""

    def __init__(self, made: list[Inputs], make: Fresh) -> None:
        self._made = made
        self._make = make

    def __call__(self) -> Inputs:
        return self._made.pop(0) if self._made else self._make()


def _have_same_values(first: Inputs, second: Inputs) -> bool:
    """Whether two sets of inputs agree although some tensor in them could have differed."""
    pairs = list(zip(_dense(first), _dense(second), strict=False))
    if not all(one.shape == other.shape and _equal(one, other) for one, other in pairs):
        return False
    return any(one.numel() > 1 and bool((one != one.flatten()[0]).any()) for one, _ in pairs)


def _dense(inputs: Inputs) -> list[torch.Tensor]:
    """The tensors with values; sparse ones as dense ones, since they cannot be compared in all layouts."""
    found = [tensor for tensor in tensors_of(inputs) if not tensor.is_meta]
    return [each if each.layout is torch.strided else each.to_dense() for each in found]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
