"""What a forward returned -> the same nesting, of the same types, around other tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from graphdoctor.graphs.modules.arguments import PLAIN, Flat, fields_of, repeats
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.tree import Tree, map_leaves

_Build = Callable[[Sequence[torch.Tensor]], Any]


class Nesting:
    """Takes a returned value apart once, so that each replay only puts tensors into it.

    `tensors` of a call to `filled` are in the order of `found`, the returned value's own, each once.
    It holds none of them. `kind` is everything but the tensors, to compare with another value's.
    """

    def __init__(self, returned: object, found: Sequence[torch.Tensor]) -> None:
        self.kind = kind_of(returned)
        self.filled = _builder(returned, {id(tensor): i for i, tensor in enumerate(found)})


def kind_of(returned: object) -> tuple[object, ...]:
    """Types, keys, their order, all values that are no tensors, and which tensors are the same."""
    flat = Flat()
    flat.add(returned)
    return made_of(flat)


def made_of(flat: Flat) -> tuple[object, ...]:
    """The same of what is taken apart already."""
    return (*flat.frozen, repeats(flat.tensors))


def _builder(value: Any, places: Mapping[int, int]) -> _Build:
    if (place := places.get(id(value))) is not None:
        return itemgetter(place)
    kind = type(value)
    if kind is tuple or kind is list:
        parts = [_builder(part, places) for part in value]
        return lambda tensors: kind([part(tensors) for part in parts])
    if kind is dict or (kind is OrderedDict and not vars(value)):
        items = [(key, _builder(part, places)) for key, part in value.items()]
        return lambda tensors: kind([(key, part(tensors)) for key, part in items])
    if kind in PLAIN:
        return lambda tensors: value
    return _builder_of_other(value, places)


def _builder_of_other(value: object, places: Mapping[int, int]) -> _Build:
    """Stand-ins are tensors too: a class may look at what is put into it."""
    stand_ins = {place: torch.empty(0, device="cpu") for place in places.values()}
    where = {id(stand_in): place for place, stand_in in stand_ins.items()}

    def stood_in(leaf: object) -> object:
        place = places.get(id(leaf))
        return leaf if place is None else stand_ins[place]

    made = map_leaves(stood_in, value)
    shape = Tree(made)
    can_be_made = made is not value or fields_of(value) is None

    def filled(tensors: Sequence[torch.Tensor]) -> object:
        def put(leaf: object) -> object:
            place = where.get(id(leaf))
            return leaf if place is None else tensors[place]

        if not can_be_made:
            raise TypeError(f"a {type(value).__name__} cannot be copied")
        return shape.map(put)

    return filled


def unlike(returned: object, nesting: Nesting, found: Sequence[torch.Tensor]) -> str:
    """Why the returned value cannot be made anew with all that it reaches; "" where it can."""
    fresh = [torch.empty(0, device="cpu") for _ in found]
    renewed = {id(tensor): id(other) for tensor, other in zip(found, fresh, strict=True)}
    name = type(returned).__name__
    try:
        made = nesting.filled(fresh)
    except Exception as error:  # classes of the user's may refuse to be copied
        return f"it returns a {name}, which cannot be made anew ({type(error).__name__})"
    if kind_of(made) != nesting.kind:
        return f"it returns a {name}, of which a copy is another"
    before, after = _reached(returned), _reached(made)
    if hidden := next((path for path, tensor in before.items() if tensor not in renewed), None):
        return (
            f"it returns a {name} that keeps a tensor in {hidden}, which a replay would not renew"
        )
    if {path: renewed[tensor] for path, tensor in before.items()} != after:
        return f"it returns a {name}, of which a copy reaches other tensors"
    return ""


def _reached(returned: object) -> dict[str, int]:
    """The identity of every tensor by its path; gradients and what hangs on hooks is no part of it."""
    found: dict[str, int] = {}
    for path, tensor in named_tensors({"output": returned}).items():
        if ".grad" not in path and "._backward_hooks" not in path:
            found[path] = id(tensor)
    return found
