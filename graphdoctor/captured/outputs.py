"""The outputs that a capture left behind -> after each replay, what eager would return for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from graphdoctor.captured.signature import Unwatchable, is_constant
from graphdoctor.target import Inputs
from graphdoctor.target.state.clone import clone_inputs, is_overlapping, memory_of
from graphdoctor.target.state.tree import Tree

Build = Callable[[Sequence[torch.Tensor]], object]
_FLAT = (tuple, list)


class Outputs:
    """How to hand out what the graph filled; the tensors are the caller's own when `clones`.

    An output that is an input, or a tensor of the model's state, is handed out as that very tensor,
    as eager does. Raises `Unwatchable` for an output that a replay could not renew.
    """

    def __init__(
        self,
        captured: object,
        *,
        inputs: Sequence[torch.Tensor],
        state: Sequence[torch.Tensor],
        clones: bool,
    ) -> None:
        self._captured = captured
        self._tree = Tree(captured)
        self._clones = clones
        self._ready: dict[int, torch.Tensor] = {}  # handed out as they are, by what they stand for
        self._given: dict[int, int] = {}  # which of the call's inputs
        self._made: list[torch.Tensor] = []
        for path, leaf in self._tree.leaves("output").items():
            if isinstance(leaf, torch.Tensor):
                self._sort(path, leaf, inputs, state)
            elif not is_constant(leaf):
                raise Unwatchable(
                    f"{path} is a {type(leaf).__name__}, which a replay would not make anew"
                )
        # Outputs that share memory, or leave gaps in it, are copied with their memory's layout.
        self._is_simple = len(memory_of(self._made)) == len(self._made) and all(
            map(_is_dense, self._made)
        )
        self.build = self._builder()

    def _sort(
        self,
        path: str,
        leaf: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        state: Sequence[torch.Tensor],
    ) -> None:
        if (place := _index_of(leaf, inputs)) is not None:
            self._given[id(leaf)] = place
        elif memory_of([leaf]) & memory_of(inputs):
            raise Unwatchable(f"{path} is a view of an input, which eager does not copy")
        elif (place := _index_of(leaf, state)) is not None:
            self._ready[id(leaf)] = state[place]
        elif memory_of([leaf]) & memory_of(state):
            self._ready[id(leaf)] = leaf
        elif id(leaf) not in map(id, self._made):
            self._made.append(leaf)

    def _builder(self) -> Build:
        captured, clone = (
            self._captured,
            torch.Tensor.clone if self._clones else torch.Tensor.detach,
        )
        if self._given or self._ready or not (self._is_simple or not self._clones):
            return self._build_any
        if len(self._made) == 1 and captured is self._made[0]:
            only = self._made[0]
            return lambda given: clone(only)
        if type(captured) in _FLAT and [*map(id, self._made)] == [*map(id, captured)]:  # type: ignore[call-overload]
            kind, made = type(captured), self._made
            return lambda given: kind(map(clone, made))  # type: ignore[call-arg]
        return self._build_any

    def _build_any(self, given: Sequence[torch.Tensor]) -> object:
        new = self._new_ones()

        def change(leaf: object) -> object:
            if (place := self._given.get(id(leaf))) is not None:
                return given[place]
            if (ready := self._ready.get(id(leaf))) is not None:
                return ready if ready is not leaf else ready.detach()
            return new.get(id(leaf), leaf)

        return self._tree.map(change)

    def _new_ones(self) -> dict[int, torch.Tensor]:
        if not self._clones:
            return {id(tensor): tensor.detach() for tensor in self._made}
        if self._is_simple:
            return {id(tensor): tensor.clone() for tensor in self._made}
        copied = clone_inputs(Inputs(tuple(self._made))).args
        return dict(zip(map(id, self._made), copied, strict=True))  # type: ignore[arg-type]


def _index_of(leaf: torch.Tensor, among: Sequence[torch.Tensor]) -> int | None:
    """Where the tensor is that `leaf`, cut from autograd, was; None where it is no such tensor."""
    for index, tensor in enumerate(among):
        if _looks(leaf) == _looks(tensor) and leaf.numel():
            return index
    return None


def _looks(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether clone() keeps its strides: no gaps, and no element twice."""
    if tensor.layout != torch.strided or is_overlapping(tensor):
        return False
    return torch.empty_like(tensor).stride() == tensor.stride()
