"""After each replay, return what eager would return: the same nesting with new tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

import torch

from graphdoctor.graphs.calls.signature import (
    TENSORS,
    Parts,
    Unwatchable,
    distinct,
    is_plain_constant,
    parts_of_output,
    repeats,
    structure_of,
)
from graphdoctor.graphs.graphed_callable import Build
from graphdoctor.target.state.clone import clone_inputs, is_overlapping, memory_of
from graphdoctor.target.state.snapshot import named_state
from graphdoctor.target.state.tree import Tree, map_leaves
from graphdoctor.target.target import Inputs

_Kind = tuple[object, tuple[int, ...]]
_SMALL = 1_024  # elements
_ALIGNED = 512  # bytes, as the caching allocator's blocks are


class Nesting:
    """A returned value, taken apart once, so that each replay only puts tensors into it.

    `filled` takes one tensor for each of the value's own, in order, each once; it holds none of
    them. `kind` is everything but the tensors, to compare with another value's. What is in `state` is
    returned as the very object. Raises `Unwatchable` for a value that cannot be made anew with all that it
    reaches.
    """

    def __init__(self, returned: object, state: Iterable[object] = ()) -> None:
        self._state = frozenset(map(id, state))
        structure, tensors = _apart(returned, self._state)
        self.kind = structure, repeats(tensors)
        found = distinct(tensors)
        # One tensor, or a plain sequence of several, is made anew without any look at nesting.
        self.is_one = type(returned) in TENSORS
        self.flat: type | None = None
        if type(returned) in (tuple, list) and [*map(id, found)] == [*map(id, returned)]:  # type: ignore[call-overload]
            self.flat = type(returned)
        try:
            places = {id(tensor): i for i, tensor in enumerate(found)}
            self.filled = _builder(returned, places, self._state)
            self._check(returned, found)
        except Unwatchable:
            raise
        except Exception as error:  # classes of the user's may refuse to be copied
            raise Unwatchable(
                f"it returns a {type(returned).__name__}, "
                f"which cannot be copied ({type(error).__name__})"
            ) from error

    def _check(self, returned: object, found: Sequence[torch.Tensor]) -> None:
        name = type(returned).__name__
        fresh = [torch.empty(0, device="cpu") for _ in found]
        renewed = {id(tensor): id(other) for tensor, other in zip(found, fresh, strict=True)}
        made = self.filled(fresh)
        if kind_of(made, self._state) != self.kind:
            raise Unwatchable(f"it returns a {name}, of which a copy is another")
        before, after = _reached(returned, self._state), _reached(made, self._state)
        for path, tensor in before.items():
            if tensor not in renewed or after.get(path) == tensor:
                raise Unwatchable(
                    f"it returns a {name} that keeps a tensor in {path}, "
                    "which a replay would not renew"
                )
        if {path: renewed[tensor] for path, tensor in before.items()} != after:
            raise Unwatchable(f"it returns a {name}, of which a copy reaches other tensors")


def kind_of(returned: object, state: Set[int] = frozenset()) -> _Kind:
    """Types, keys, their order, all values that are no tensors, and which tensors are the same.

    `state` are ids of objects that are not looked into.
    """
    structure, tensors = _apart(returned, state)
    return structure, repeats(tensors)


def tensors_in(returned: object, state: Iterable[object] = ()) -> list[torch.Tensor]:
    """The tensors of a returned value, each once, in the order in which `Nesting` takes them."""
    return distinct(_apart(returned, frozenset(map(id, state)))[1])


def _apart(returned: object, state: Set[int]) -> tuple[object, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []

    def parts_of(value: object) -> Parts | None:
        return [] if id(value) in state else parts_of_output(value)

    try:
        return structure_of(returned, tensors, parts_of), tensors
    except Unwatchable as reason:
        what = str(reason).removeprefix("an input is ").split(",")[0]
        raise Unwatchable(f"it returns {what}, whose content a graph cannot make") from reason


def _builder(value: Any, places: Mapping[int, int], state: Set[int]) -> Build:
    if id(value) in state:
        return lambda tensors: value
    if (place := places.get(id(value))) is not None:
        return itemgetter(place)
    kind = type(value)
    if kind is tuple or kind is list:
        parts = [_builder(part, places, state) for part in value]
        return lambda tensors: kind([part(tensors) for part in parts])
    if kind is dict or (kind is OrderedDict and not vars(value)):
        items = [(key, _builder(part, places, state)) for key, part in value.items()]
        return lambda tensors: kind([(key, part(tensors)) for key, part in items])
    if is_plain_constant(value):
        return lambda tensors: value
    return _builder_of_other(value, places)


def _builder_of_other(value: object, places: Mapping[int, int]) -> Build:
    """Stand-ins are tensors too: a class may look at what is put into it."""
    stand_ins = {place: torch.empty(0, device="cpu") for place in places.values()}
    where = {id(stand_in): place for place, stand_in in stand_ins.items()}

    def stood_in(leaf: object) -> object:
        place = places.get(id(leaf))
        return leaf if place is None else stand_ins[place]

    shape = Tree(map_leaves(stood_in, value))

    def filled(tensors: Sequence[torch.Tensor]) -> object:
        def put(leaf: object) -> object:
            place = where.get(id(leaf))
            return leaf if place is None else tensors[place]

        return shape.map(put)

    return filled


def _reached(returned: object, state: Set[int]) -> dict[str, int]:
    """The identity of every tensor by its path; gradients and what hangs on hooks is no part of it."""
    found: dict[str, int] = {}
    for path, tensor in named_state({"output": returned}, leaves=state)[0].items():
        if ".grad" not in path and "._backward_hooks" not in path:
            found[path] = id(tensor)
    return found


class Outputs:
    """How to hand out what a graph filled; the tensors are the caller's own when `clones`.

    `tensors` are what the capture left, in the order of `nesting`. One that is an input, or a tensor
    of the model's state, is handed out as that very tensor, as eager does. `build` gives the answer
    after a replay for the call's own inputs. Raises `Unwatchable` for what a replay could not renew.
    """

    def __init__(
        self,
        nesting: Nesting,
        tensors: Sequence[torch.Tensor],
        *,
        inputs: Sequence[torch.Tensor] = (),
        state: Sequence[torch.Tensor] = (),
        clones: bool,
    ) -> None:
        self._filled = nesting.filled
        self._made: list[torch.Tensor] = []
        self._ready: list[Callable[[], torch.Tensor]] = []
        self._sources = [self._source(tensor, inputs, state) for tensor in tensors]
        self._fresh = fresh_copies(self._made, clones=clones)
        self.build = self._builder(nesting, torch.Tensor.clone if clones else torch.Tensor.detach)

    def _source(
        self, tensor: torch.Tensor, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]
    ) -> tuple[str, int]:
        """Where a tensor of the answer comes from."""
        if (place := _index_of(tensor, inputs)) is not None:
            return "given", place
        if memory_of([tensor]) & memory_of(inputs):
            raise Unwatchable("an output is a view of an input, which eager does not copy")
        if memory_of([tensor]) & memory_of(state):
            place = _index_of(tensor, state)
            held = None if place is None else state[place]
            self._ready.append(tensor.detach if held is None else lambda: held)
            return "ready", len(self._ready) - 1
        self._made.append(tensor)
        return "made", len(self._made) - 1

    def _builder(self, nesting: Nesting, copy: Callable[[torch.Tensor], torch.Tensor]) -> Build:
        filled, fresh, made = self._filled, self._fresh, self._made
        if len(made) < len(self._sources):
            return self._build_any
        if nesting.is_one and _is_simple(made):
            only = made[0]
            return lambda given: copy(only)
        if (kind := nesting.flat) is not None:
            return lambda given: kind(fresh())
        return lambda given: filled(fresh())

    def _build_any(self, given: Sequence[torch.Tensor]) -> object:
        found = {"given": given, "made": self._fresh(), "ready": [get() for get in self._ready]}
        return self._filled([found[kind][place] for kind, place in self._sources])


def fresh_copies(
    made: Sequence[torch.Tensor], *, clones: bool
) -> Callable[[], Sequence[torch.Tensor]]:
    """A function that gives copies of tensors; their strides, and the memory they share, are kept."""
    if not clones:
        return lambda: [tensor.detach() for tensor in made]
    if _are_small(made):
        return _together(made)
    if _is_simple(made):
        return lambda: [tensor.clone() for tensor in made]
    together = Inputs(tuple(made))
    return lambda: clone_inputs(together).args  # type: ignore[return-value]


def _are_small(made: Sequence[torch.Tensor]) -> bool:
    """Whether copies may share memory: one that is kept, such as a loss, keeps all of it."""
    return (
        len(made) > 1
        and all(each.numel() <= _SMALL for each in made)
        and len({each.dtype for each in made}) == 1
        and _is_simple(made)
    )


def _together(made: Sequence[torch.Tensor]) -> Callable[[], Sequence[torch.Tensor]]:
    """One allocation and one launch for all, where clones would take one each.

    Each is aligned as a separate tensor would be: kernels sum in a different order where memory is not aligned.
    """
    first, static, places, end = made[0], list(made), [], 0
    for each in made:
        places.append((each.shape, each.stride(), end))
        end += -(-each.numel() * each.element_size() // _ALIGNED) * _ALIGNED // each.element_size()

    def copies() -> Sequence[torch.Tensor]:
        memory = first.new_empty(end)
        # `.data`: views share a version counter, and a write to one would count as one to the others.
        found = [memory.as_strided(*place).data for place in places]
        torch._foreach_copy_(found, static)
        return found

    return copies


def _is_simple(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether clones are alike: no shared memory, no gaps in it, and no element twice."""
    return len(memory_of(tensors)) == len(tensors) and all(map(_is_dense, tensors))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether clone() keeps its strides."""
    if tensor.layout != torch.strided or is_overlapping(tensor):
        return False
    return torch.empty_like(tensor).stride() == tensor.stride()


def _index_of(leaf: torch.Tensor, among: Sequence[torch.Tensor]) -> int | None:
    """Where the tensor is that `leaf`, cut from autograd, was; None where it is no such tensor."""
    if leaf.layout != torch.strided:  # a sparse tensor has no memory of its own
        return None
    for index, tensor in enumerate(among):
        if tensor.layout == torch.strided and _looks(leaf) == _looks(tensor) and leaf.numel():
            return index
    return None


def _looks(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
