"""Make a function that returns fresh inputs on each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice

import torch
from torch.utils.data import DataLoader

from graphdoctor.target.inputs.draw import Draw, drawing_of, rearranging_of
from graphdoctor.target.state.clone import clone_inputs, element_span, is_overlapping
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.target.state.tree import Tree, input_leaves, map_inputs
from graphdoctor.target.target import Inputs, Variation
from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import UsageError

_SEED = 0x6D0C  # any number: fixed, so that an analysis can be repeated
_TRIAL_SEED = 0x6D0D  # draws of a trial after its first are no others


class Redraw:
    """Each call gives new tensors: same shapes, strides, types, device, aliasing, `requires_grad`.

    The first call gives copies of the given values. `kept` are ids of tensors that belong to the
    step's state and are passed on as they are. The user's generators are not touched.
    """

    def __init__(self, inputs: Inputs, *, kept: Collection[int] = ()) -> None:
        self._inputs = inputs
        self._generator = torch.Generator().manual_seed(_SEED)
        self._is_first = True
        memories = _memories(tensors_of(inputs), kept)
        paths = {id(leaf): path for path, leaf in input_leaves(inputs).items()}
        self._memories = {memory.named(paths): memory for memory in memories}
        self._kept: frozenset[str] = frozenset()
        self._rearranged: frozenset[str] = frozenset()

    @property
    def given(self) -> tuple[str, ...]:
        """The paths of all tensors that are not the step's state."""
        return tuple(self._memories)

    @property
    def varied(self) -> tuple[str, ...]:
        """The paths of what gets other values, tensors that share memory as one."""
        return tuple(
            path
            for path, memory in self._memories.items()
            if memory.can_vary and path not in self._kept
        )

    @property
    def whole_numbers(self) -> tuple[str, ...]:
        """Those that hold integers or bools."""
        return tuple(path for path in self.varied if self._memories[path].is_whole)

    @property
    def rearrangeable(self) -> tuple[str, ...]:
        """Those whose numbers can stand in other places."""
        return tuple(path for path in self.whole_numbers if any(self._memories[path].rearranging))

    def keep(self, paths: Collection[str]) -> None:
        """Give these their own values from now on."""
        self._kept |= frozenset(paths)

    def rearrange(self, paths: Collection[str]) -> None:
        """Give these their own numbers in other places from now on; their own where there is no other."""
        self._rearranged |= frozenset(paths)

    @contextmanager
    def trying(
        self, paths: Collection[str], *, rearranged: Collection[str] = (), draw: int = 0
    ) -> Iterator[None]:
        """In this block only these get other values; afterwards all is drawn as if it had not been.

        The first draw is what the next call gives where all vary: what a trial has accepted comes again.
        """
        before = self._kept, self._rearranged, self._generator
        self._kept = frozenset(self._memories) - frozenset(paths) - frozenset(rearranged)
        self._rearranged = frozenset(rearranged)
        self._generator = torch.Generator()
        if draw:
            self._generator.manual_seed(_TRIAL_SEED + draw)
        else:
            self._generator.set_state(before[2].get_state())
        try:
            yield
        finally:
            self._kept, self._rearranged, self._generator = before

    def __call__(self) -> Inputs:
        made: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for path, memory in self._memories.items():
                is_given = self._is_first or path in self._kept
                draws = memory.rearranging if path in self._rearranged else memory.draws
                made.update(memory.make(None if is_given else self._generator, draws))
        self._is_first = False

        def new(leaf: object) -> object:
            return made.get(id(leaf), leaf)

        return map_inputs(new, self._inputs, into_objects=False)


def tensors_of(inputs: Inputs) -> list[torch.Tensor]:
    """The tensors among the inputs, in order; what an object holds, such as a cache, is its state."""
    tree = Tree((inputs.args, dict(inputs.kwargs)), into_objects=False)
    return [leaf for leaf in tree.leaves("").values() if isinstance(leaf, torch.Tensor)]


class _Memory:
    """One storage and the input tensors that look at it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        # Small ones are written first, so that where they overlap the largest has its way.
        self._tensors = sorted(tensors, key=torch.Tensor.numel)
        self._start = min(tensor.storage_offset() for tensor in tensors)
        ends = (tensor.storage_offset() + element_span(tensor) for tensor in tensors)
        self._length = max(ends) - self._start
        whole = tensors[0].detach().as_strided((self._length,), (1,), self._start)
        self._values = whole.clone().cpu()
        self.is_whole = not (whole.is_floating_point() or whole.is_complex())
        self.draws = [_draw_of(tensor, drawing_of) for tensor in self._tensors]

    @cached_property
    def rearranging(self) -> list[Draw | None]:
        """Draws of the numbers that are there, in other places."""
        return [_draw_of(tensor, rearranging_of) for tensor in self._tensors]

    @property
    def can_vary(self) -> bool:
        return any(draw is not None for draw in self.draws)

    def named(self, paths: Mapping[int, str]) -> str:
        """The paths of its tensors, as a key and for people."""
        return " and ".join(paths.get(id(tensor), "an input") for tensor in self._tensors)

    def make(
        self, generator: torch.Generator | None, draws: Sequence[Draw | None]
    ) -> dict[int, torch.Tensor]:
        """By the `id` of the given tensor: one with values that are drawn, or the given ones."""
        flat = self._values.clone()
        if generator is not None:
            for tensor, draw in zip(self._tensors, draws, strict=True):
                if draw is not None:
                    once = _each_element_once(tensor)
                    self._view(flat, tensor)[once].copy_(draw(generator)[once])
        moved = flat.to(self._tensors[0].device)
        return {
            id(tensor): self._view(moved, tensor).detach().requires_grad_(tensor.requires_grad)
            for tensor in self._tensors
        }

    def _view(self, flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        offset = tensor.storage_offset() - self._start
        return flat.as_strided(tensor.size(), tensor.stride(), offset)


def _memories(tensors: list[torch.Tensor], kept: Collection[int]) -> list[_Memory]:
    groups: dict[tuple[int, torch.dtype], dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        if id(tensor) not in kept and _is_plain(tensor):
            key = (tensor.untyped_storage()._cdata, tensor.dtype)
            groups.setdefault(key, {})[id(tensor)] = tensor
    return [_Memory(list(group.values())) for group in groups.values()]


def _is_plain(tensor: torch.Tensor) -> bool:
    """A tensor with elements in memory; a Parameter is state, and a subclass has its own ways."""
    is_strided = tensor.layout is torch.strided and not tensor.is_meta
    return type(tensor) is torch.Tensor and is_strided and tensor.numel() > 0


def _draw_of(tensor: torch.Tensor, way: Callable[[torch.Tensor], Draw | None]) -> Draw | None:
    with plain_torch():  # dozens of small operators, of which none is the step's
        if is_overlapping(tensor.detach()[_each_element_once(tensor)]):  # as sliding windows are
            return None
        return way(tensor.detach().clone().cpu())


def _each_element_once(tensor: torch.Tensor) -> tuple[slice, ...]:
    """An index that leaves out the repetitions of an expanded dimension."""
    return tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())


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
    got = "None" if value is None else f"an object of type {type(value).__name__}"
    raise UsageError(
        f"{what} returned {got}, but inputs are a list or tuple of arguments, "
        f"a dict of keyword arguments, or one tensor"
    )


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
