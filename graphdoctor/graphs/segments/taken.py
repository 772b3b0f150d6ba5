"""The arguments of a call -> those that a capture reads where they lie, and copies of the others."""

from __future__ import annotations

from typing import Any

import torch

from graphdoctor.graphs.graphed_callable import copy_into
from graphdoctor.graphs.segments.memory import clones, copy_all, memory_of
from graphdoctor.graphs.tensor_layouts import TensorLayouts, are_at

_address = torch.Tensor.data_ptr


class Taken:
    """The arguments that a capture was made with: some fixed where they lie, the others copied in.

    Only the copies are held: memory that is not the graph's own must not outlive its owner for it.
    What is `as_they_come`, or lies on the host, is read by eager parts alone.
    """

    def __init__(
        self,
        args: list[Any],
        fixed: list[bool],
        written: frozenset[int],
        *,
        as_they_come: frozenset[int] = frozenset(),
    ) -> None:
        on_device = [
            place
            for place, arg in enumerate(args)
            if isinstance(arg, torch.Tensor) and arg.is_cuda and place not in as_they_come
        ]
        self._kept = [place for place in on_device if fixed[place]]
        kept = [args[place] for place in self._kept]
        self._addresses: list[int | None] = list(map(_address, kept))
        self._layouts = TensorLayouts(kept)
        self._every = list(range(len(kept)))
        self.fixed_memory = frozenset(map(memory_of, kept))
        self._copied = [place for place in on_device if not fixed[place]]
        self._back = [place for place in self._copied if place in written]
        self._makes = [_make(arg) for arg in args]
        self.copies = clones([args[place] for place in self._copied])
        self._fill = copy_into(self.copies)

    def fits(self, args: list[Any], *, guarded: bool) -> bool:
        """Whether shapes and values are those of the capture, and what is fixed lies where it lay."""
        if not guarded:
            if len(args) != len(self._makes):
                return False
            if any(_make(arg) != make for arg, make in zip(args, self._makes, strict=True)):
                return False
        # A step that trains is handed every parameter: hundreds are looked at in each call. Up to torch 2.9
        # Dynamo does not notice `weight.data = weight.data.t()`, nor `weight.data[:2]`, and any may be told
        # to leave guards out.
        kept = [args[place] for place in self._kept]
        return are_at(kept, self._addresses, self._every) and self._layouts.are_those_of(kept)

    def moved(self, args: list[Any]) -> list[int]:
        pairs = zip(self._kept, self._addresses, strict=True)
        return [place for place, address in pairs if address_of(args[place]) != address]

    def load(self, args: list[Any]) -> list[Any]:
        """The arguments to run on, with the new values in the graph's own."""
        self._fill([args[place] for place in self._copied])
        return self.placed(args)

    def placed(self, args: list[Any]) -> list[Any]:
        placed = list(args)
        for place, copy in zip(self._copied, self.copies, strict=True):
            placed[place] = copy
        return placed

    def write_back(self, args: list[Any], placed: list[Any]) -> None:
        copy_all([args[place] for place in self._back], [placed[place] for place in self._back])


def address_of(arg: object) -> int:
    return arg.data_ptr() if isinstance(arg, torch.Tensor) else 0


def _make(arg: Any) -> object:
    """What may not change: of a tensor all but its values, of anything else the value."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.dtype, arg.device, arg.stride()
    return arg
