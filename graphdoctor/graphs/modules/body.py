"""A module's forward and one call of it -> the same as a function of a flat tuple of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from graphdoctor.graphs.modules.arguments import Flat, distinct, flat_call
from graphdoctor.graphs.modules.nesting import made_of
from graphdoctor.graphs.modules.observe import Observed
from graphdoctor.target.state.tree import map_inputs
from graphdoctor.target.target import Inputs


class Body(torch.nn.Module):
    """Calls the forward with the captured call's arguments, its tensors replaced by those given.

    It is a module so that `make_graphed_callables` finds the parameters. Outputs whose positions
    are not in `given` are detached: no gradient ever comes for them. `differentiable` says which
    outputs of the last call hang on autograd. Autocast keeps no cast weights: a graph casts them
    anew in each replay, since an optimizer changes them in between. Raises RuntimeError where the
    forward returns another kind of value than the observed call did.
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
        self._places = list(map(id, tensors_of(observed.sample)))
        self._autocast, self._dtype = observed.signature[1:3]
        self.given: Collection[int] | None = observed.given
        self._kind = observed.returned.kind if observed.returned is not None else ()
        self.differentiable: tuple[bool, ...] = ()

    def eager(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The forward itself, also after make_graphed_callables has replaced it."""
        return Body.forward(self, *tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self._places, tensors, strict=True))
        call = map_inputs(lambda leaf: given.get(id(leaf), leaf), self._sample)
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
        if made_of(flat) != self._kind:
            raise RuntimeError("its forward does not return the same kind of value in every call")
        self.differentiable = tuple(tensor.requires_grad for tensor in found)
        if self.given is None:
            return tuple(found)
        return tuple(
            tensor if index in self.given else tensor.detach() for index, tensor in enumerate(found)
        )


def tensors_of(sample: Inputs) -> list[torch.Tensor]:
    """The tensors that a body takes, each once, in the order in which a call is taken apart."""
    return distinct(flat_call(sample.args, sample.kwargs).tensors)
