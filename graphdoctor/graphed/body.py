"""A module's forward and one call of it -> the same as a function of a flat tuple of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from graphdoctor.graphed.arguments import Flat
from graphdoctor.graphed.observe import Observed, distinct
from graphdoctor.target.target import Inputs
from graphdoctor.target.tree import map_inputs, map_leaves

_TENSORS = (torch.Tensor, torch.nn.Parameter)


class _Slot:
    """Where a tensor goes in what a call returns. No dataclass: those are containers of leaves."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Outputs:
    """The nesting of what a forward returned, to be filled with other tensors."""

    def __init__(self, returned: object, tensors: Sequence[torch.Tensor]) -> None:
        places = {id(tensor): _Slot(index) for index, tensor in enumerate(tensors)}
        self._shape = map_leaves(lambda leaf: places.get(id(leaf), leaf), returned)

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the forward returns, made of these tensors."""
        shape = self._shape
        if type(shape) is _Slot:
            return tensors[shape.index]
        return map_leaves(lambda leaf: tensors[leaf.index] if type(leaf) is _Slot else leaf, shape)


class Body(torch.nn.Module):
    """Calls the forward with the captured call's arguments, its tensors replaced by those given.

    It is a module so that `make_graphed_callables` finds the parameters. Outputs whose positions
    are not in `given` are detached: no gradient ever comes for them. `outputs` and `differentiable`
    are those of the last call. Autocast keeps no cast weights: a graph casts them anew in each
    replay, since an optimizer changes them in between.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        observed: Observed,
    ) -> None:
        super().__init__()
        self.module = module
        self._forward = forward
        self._sample = observed.sample
        self._autocast, self._dtype = observed.signature[1:3]
        self.given: Collection[int] | None = observed.given
        self.outputs: Outputs | None = None
        self.differentiable: tuple[bool, ...] = ()

    def eager(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The forward itself, also after make_graphed_callables has replaced it."""
        return Body.forward(self, *tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = iter(tensors)
        call = map_inputs(lambda leaf: next(left) if type(leaf) in _TENSORS else leaf, self._sample)
        with torch.autocast(
            "cuda",
            dtype=self._dtype,  # type: ignore[arg-type]
            enabled=bool(self._autocast),
            cache_enabled=False,
        ):
            returned = self._forward(*call.args, **call.kwargs)
        flat = Flat()
        flat.add(returned)
        found = distinct(flat.tensors)
        self.outputs = Outputs(returned, found)
        self.differentiable = tuple(tensor.requires_grad for tensor in found)
        if self.given is None:
            return tuple(found)
        return tuple(
            tensor if index in self.given else tensor.detach() for index, tensor in enumerate(found)
        )


def tensors_of(sample: Inputs) -> tuple[torch.Tensor, ...]:
    """The tensors that a body takes, in order."""
    found: list[torch.Tensor] = []

    def note(leaf: object) -> object:
        if isinstance(leaf, _TENSORS):
            found.append(leaf)
        return leaf

    map_inputs(note, sample)
    return tuple(found)
