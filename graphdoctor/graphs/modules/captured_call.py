"""One call of a module as a function of tensors at fixed addresses, from which graphs are captured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.device.observe.dispatch import DispatchMode
from graphdoctor.device.observe.operators import tensors_of, tensors_of_call
from graphdoctor.graphs.calls import Unwatchable, distinct, signature
from graphdoctor.graphs.calls.outputs import kind_of, tensors_in
from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.modules.observe import Observed
from graphdoctor.target.state.clone import clone_inputs, is_overlapping, memory_of
from graphdoctor.target.state.tree import map_inputs
from graphdoctor.target.target import Inputs

_OTHER_KIND = "its forward does not return the same kind of value in every call"


@dataclass(frozen=True, slots=True)
class Choices:
    """How modules are graphed.

    `most_graphs` bounds the graphs of one module, for calls of different kinds and for calls
    whose backward passes come later. `is_worth` says of a path whether it may be graphed at all.
    """

    most_graphs: int = 8
    warm_ups: int = 3
    is_worth: Callable[[str], bool] = lambda path: True


class Lane:
    """The stream that the last graph ran on: another stream waits for it first.

    Graphs share memory: the next call's inputs must not be written before the last replay has ended.
    `pool` is the memory of those whose results are copied out at once.
    """

    def __init__(self) -> None:
        self.pool = Pool()
        self._last: Any = None

    def enter(self) -> None:
        current: Any = torch.cuda.current_stream()
        if self._last is not None and self._last != current:
            current.wait_stream(self._last)
        self._last = current


class Body(torch.nn.Module):
    """Calls the forward with the captured call's arguments, its tensors replaced by those given.

    It is a module so that `make_graphed_callables` finds the parameters. Outputs whose positions
    are not in `given` are detached: no gradient ever comes for them. `differentiable` says which
    outputs of the last call hang on autograd. Autocast keeps no cast weights: a graph casts them
    anew in each replay, since an optimizer changes them in between. Raises RuntimeError where the
    forward returns another kind of value than the observed call did.
    """

    def __init__(
        self, module: torch.nn.Module, forward: Callable[..., Any], observed: Observed
    ) -> None:
        super().__init__()
        self.module = module
        self._forward = forward
        self._sample = observed.sample
        self._places = list(map(id, tensors_given(observed.sample)))
        self._mode = observed.mode
        self.given: Collection[int] | None = observed.given
        self._kind = observed.returned.kind if observed.returned is not None else None
        self.differentiable: tuple[bool, ...] = ()

    def call(self, tensors: tuple[torch.Tensor, ...]) -> Inputs:
        """The arguments, with these tensors."""
        given = dict(zip(self._places, tensors, strict=True))
        return map_inputs(lambda leaf: given.get(id(leaf), leaf), self._sample)

    def eager(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The forward itself, also after make_graphed_callables has replaced it."""
        return Body.forward(self, *tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call = self.call(tensors)
        with torch.autocast(
            "cuda", dtype=self._mode.dtype, enabled=self._mode.autocast, cache_enabled=False
        ):
            returned = self._forward(*call.args, **call.kwargs)
        try:
            found, kind = tensors_in(returned), kind_of(returned)
        except Unwatchable as reason:
            raise RuntimeError(_OTHER_KIND) from reason
        if kind != self._kind:
            raise RuntimeError(_OTHER_KIND)
        self.differentiable = tuple(tensor.requires_grad for tensor in found)
        if self.given is None:
            return tuple(found)
        return tuple(
            tensor if index in self.given else tensor.detach() for index, tensor in enumerate(found)
        )


@dataclass(frozen=True, slots=True)
class ToCapture:
    """One call of a module, as a body and tensors at fixed addresses."""

    body: Body
    static: tuple[torch.Tensor, ...]
    observed: Observed
    choices: Choices
    lane: Lane

    @property
    def described(self) -> Inputs:
        """The call with tensors that lie as the observed ones did, to say how another call differs."""
        pairs = zip(self.static, tensors_given(self.observed.sample), strict=True)
        return self.body.call(tuple(_lying_like(static, given) for static, given in pairs))

    @contextmanager
    def as_observed(self) -> Iterator[None]:
        """Grad mode as in the observed call, and no autocast: the body has its own.

        A backward pass runs outside autocast, as torch recommends, and so it is captured.
        """
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(self.observed.mode.grad),
            torch.autocast("cuda", enabled=False),
        ):
            yield

    def reads_foreign_memory(self, known: frozenset[object]) -> bool:
        """Whether the call reads tensors on the GPU other than its inputs and `known` memory.

        Such are those that a library's cache has: it may drop them for others at any time, and free
        the memory that a graph reads. The first of two calls fills the cache.
        """
        with self.as_observed():
            self.body.eager(*self.static)
            with _Reads(known | memory_of(self.static)) as reads:
                self.body.eager(*self.static)
        return bool(reads.found_foreign)


class _Reads(DispatchMode):
    """Tells whether operators read memory that is neither known nor made by one of them."""

    def __init__(self, known: frozenset[object]) -> None:
        super().__init__()
        self.found_foreign = False
        self._known = set(known)
        self._kept: list[torch.Tensor] = []  # lest an address be used twice

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = [tensor for tensor in tensors_of_call(args, kwargs or {}) if tensor.is_cuda]
        if not memory_of(given) <= self._known:
            self.found_foreign = True
        result = func(*args, **(kwargs or {}))
        made = [tensor for tensor in tensors_of(result) if tensor.is_cuda]
        self._kept += made
        self._known |= memory_of(made)
        return result


def tensors_given(sample: Inputs) -> list[torch.Tensor]:
    """The tensors that a body takes, each once, in the order in which a call is taken apart."""
    return distinct(signature(sample.args, sample.kwargs)[1])


def static_tensors(observed: Observed) -> tuple[torch.Tensor, ...]:
    """The observed call's tensors, each once, on memory that it shares with no other of them.

    For a backward pass expanded and overlapping ones lie densely: torch's graphed callables copy into
    them element by element, and the gradient of one has an element for each of them anyway. That a
    call's tensors lie as the observed ones did is watched by its signature.
    """
    with torch.inference_mode(False):
        clones = (clone_inputs(Inputs((tensor,))) for tensor in tensors_given(observed.sample))
        made = [tensor for clone in clones for tensor in tensors_given(clone)]
        return tuple(map(_dense, made) if observed.wants_gradients else made)


def _lying_like(static: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    if static.stride() == given.stride():
        return static
    like = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
    return like.requires_grad_(given.requires_grad)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if not is_overlapping(tensor):
        return tensor
    # In the order of dimensions in which an operator's output for it would lie.
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
