"""The CUDA graphs of an observed module call: of its forward pass, and of its backward pass if there is one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from graphdoctor.device.observe.dispatch import DispatchMode
from graphdoctor.device.observe.operators import tensors_of, tensors_of_call
from graphdoctor.graphs.calls import Outputs, Unwatchable, distinct, signature
from graphdoctor.graphs.calls.outputs import kind_of, tensors_in
from graphdoctor.graphs.capture import (
    Pool,
    capture_graph,
    device_usable_after_failure,
    no_word_of_empty_graphs,
)
from graphdoctor.graphs.graphed_callable import GraphedCallable
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
    """Notes whether operators read memory that is neither known nor allocated by one of them."""

    def __init__(self, known: frozenset[object]) -> None:
        super().__init__()
        self.found_foreign = False
        self._known = set(known)
        self._kept: list[torch.Tensor] = []  # keeps addresses from being reused

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


_Gradients = tuple[torch.Tensor | None, ...]


class Gradients:
    """The gradients of one backward graph, for its inputs first and then for its parameters.

    Autograd takes a parameter's first gradient for its `.grad` as it is, in the graph's memory;
    where `.grad` is kept, for accumulation, the next backward pass would write over it
    (pytorch/pytorch#181723), and so would the next forward pass, whose temporary results may have had
    that memory before the backward pass was captured. So it is moved out before either. Gradients of
    inputs, and all that `torch.autograd.grad` returns, are copied at once.
    """

    def __init__(self, call: ToCapture, run: Callable[..., Any]) -> None:
        self._inputs = len(call.static)
        self._given = tuple(
            wanted and (call.body.given is None or index in call.body.given)
            for index, wanted in enumerate(call.body.differentiable)
        )
        self._parameters = [p for p in call.body.parameters() if p.requires_grad]
        self._lent = tuple(self._places(call, run))
        self._reached = tuple(self._reach(call)) if sum(self._given) > 1 else ()

    def _places(
        self, call: ToCapture, run: Callable[..., Any]
    ) -> Iterator[tuple[torch.nn.Parameter, int]]:
        """The address where the graph leaves each parameter's gradient, seen by running it once."""
        if not self._parameters:
            return
        with torch.enable_grad():
            outputs = run(*call.static)
            wanted = [o for o, given in zip(outputs, self._given, strict=True) if given]
            gradients = torch.autograd.grad(
                wanted, self._parameters, [torch.zeros_like(o) for o in wanted], allow_unused=True
            )
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                yield parameter, gradient.data_ptr()

    def _reach(self, call: ToCapture) -> Iterator[frozenset[int]]:
        """For each output, for which inputs and parameters eager has a gradient from it alone."""
        surface = [*call.static, *call.body.parameters()]
        places = [index for index, tensor in enumerate(surface) if tensor.requires_grad]
        with call.as_observed():
            outputs = call.body.eager(*call.static)
            for output, given in zip(outputs, self._given, strict=True):
                if not given:
                    yield frozenset()
                    continue
                found = torch.autograd.grad(
                    output,
                    [surface[index] for index in places],
                    torch.zeros_like(output),
                    allow_unused=True,
                    retain_graph=True,
                )
                there = zip(places, found, strict=True)
                yield frozenset(index for index, gradient in there if gradient is not None)

    def check(self, came: tuple[bool, ...]) -> None:
        """Raises RuntimeError where a gradient came that the backward graph does not take."""
        if any(there and not taken for there, taken in zip(came, self._given, strict=True)):
            raise RuntimeError(
                "A gradient came for an output of a graphed module that got none when it was "
                "captured, so its graph would ignore it. Capture it with a step that uses it."
            )

    def move_out(self) -> None:
        """Give each `.grad` in the graph's memory memory of its own; it stays the same tensor."""
        held = ((parameter.grad, address) for parameter, address in self._lent)
        lent = [g for g, address in held if g is not None and g.data_ptr() == address]
        if not lent:
            return
        inside = [gradient.data for gradient in lent]
        own = [torch.empty_like(gradient) for gradient in inside]
        torch._foreach_copy_(own, inside)  # a few launches for all of them
        for gradient, moved in zip(lent, own, strict=True):
            gradient.data = moved

    def handed_out(self, found: _Gradients, came: tuple[bool, ...]) -> _Gradients:
        """What autograd gets in place of what the graph's node returned."""
        split = self._inputs
        own = [g.clone() if g is not None else None for g in found[:split]]
        own += (
            found[split:]
            if self._will_accumulate()
            else [g.clone() if g is not None else None for g in found[split:]]
        )
        if self._reached and came != self._given:
            # Torch gave the graph zeros for outputs that got no gradient; eager has none from them.
            pairs = zip(came, self._reached, strict=True)
            reached = {index for there, some in pairs if there for index in some}
            own = [g if index in reached else None for index, g in enumerate(own)]
        return tuple(own)

    def _will_accumulate(self) -> bool:
        """Whether this backward pass puts gradients into `.grad`, and returns none."""
        if not self._parameters:
            return True
        node = get_gradient_edge(self._parameters[0]).node
        try:
            return bool(torch._C._will_engine_execute_node(node))
        except RuntimeError:  # torch's answer for a leaf in torch.autograd.grad
            return False


class InferenceGraph:
    """One graph of a forward. It can serve the next call as soon as this one has returned."""

    is_free = True

    def __init__(self, call: ToCapture) -> None:
        self._lane = call.lane

        def run() -> list[torch.Tensor]:
            return [tensor.detach() for tensor in call.body(*call.static)]

        def warm_up() -> None:
            for _ in range(call.choices.warm_ups):
                run()

        pool = call.lane.pool
        with call.as_observed():
            made = capture_graph(run, pool.side, pool=pool, warm_up=warm_up)
        assert call.observed.returned is not None
        outputs = Outputs(call.observed.returned, made.result, clones=True)
        self._forward = GraphedCallable(made.graph, call.static, outputs.build)

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        """Run the forward on these tensors, which are as the captured call's."""
        forward = self._forward
        with torch.no_grad():
            self._lane.enter()
            return forward(tensors)

    def release(self) -> None:
        """Give the graph and its memory back."""
        self._forward.release()


class _Nothing:
    """Stands for the graphs, which make_graphed_callables keeps to itself."""

    def reset(self) -> None:
        pass


class OnePass:
    """A forward pass whose intermediate values the graph holds, until its backward pass has run."""

    __slots__ = ("__weakref__", "_graph", "came", "is_done")

    def __init__(self, graph: TrainingGraph) -> None:
        self._graph = graph
        self.is_done = False
        self.came: tuple[bool, ...] = ()

    def redeem(self, came: tuple[bool, ...]) -> None:
        if self.is_done:
            raise RuntimeError(
                "A backward pass through a graphed module runs a second time for one forward, but "
                "its graph keeps what it needs for one only. Leave this module out of the graphs."
            )
        self.is_done, self.came = True, came
        self._graph.before_backward(came)


class TrainingGraph:
    """The graphs of one forward and of its backward.

    It serves no other call between a forward and its backward, which would overwrite the values
    that the backward needs.
    """

    def __init__(self, call: ToCapture) -> None:
        self._lane = call.lane
        self._latest: weakref.ref[OnePass] | None = None
        observed, usable = call.as_observed(), device_usable_after_failure(_Nothing())
        with observed, usable, no_word_of_empty_graphs():
            graphed: Any = torch.cuda.make_graphed_callables(
                call.body,
                call.static,
                num_warmup_iters=call.choices.warm_ups,
                allow_unused_input=True,
            )
        assert call.observed.returned is not None
        # From torch 2.15 on, `forward` alone does not keep its module alive.
        self._graphed: Any = graphed
        self._filled = call.observed.returned.filled
        self._differentiable = call.body.differentiable
        self._gradients = Gradients(call, graphed.forward)

    @property
    def is_free(self) -> bool:
        """Whether no forward pass waits for its backward pass."""
        latest = self._latest() if self._latest is not None else None
        return latest is None or latest.is_done

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        """Run the forward on these tensors, which are as the captured call's."""
        assert self._graphed is not None
        self._lane.enter()
        self._gradients.move_out()
        this = OnePass(self)
        self._latest = weakref.ref(this)
        found = self._graphed.forward(*tensors)
        gradients = self._gradients
        node = next(tensor.grad_fn for tensor in found if tensor.grad_fn is not None)
        node.register_hook(lambda given, _: gradients.handed_out(given, this.came))
        outputs: Any = Returned.apply(  # type: ignore[no-untyped-call]
            this, self._differentiable, *found
        )
        return self._filled(outputs)

    def before_backward(self, came: tuple[bool, ...]) -> None:
        """The backward graph is about to run."""
        self._lane.enter()
        self._gradients.check(came)
        self._gradients.move_out()

    def release(self) -> None:
        """Give the graphs and their memory back, as soon as no backward pass waits for them."""
        self._graphed = None


class Returned(torch.autograd.Function):
    """Outputs, copied out of the graph's memory; the backward pass asks `OnePass` first."""

    @staticmethod
    def forward(
        ctx: Any, this: OnePass, differentiable: tuple[bool, ...], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.this = this
        ctx.set_materialize_grads(False)
        made = tuple(tensor.clone() for tensor in tensors)
        ctx.mark_non_differentiable(
            *(tensor for tensor, wanted in zip(made, differentiable, strict=True) if not wanted)
        )
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.this.redeem(tuple(gradient is not None for gradient in gradients))
        return (None, None, *gradients)


Graph = InferenceGraph | TrainingGraph  # `is_free`: it can serve a call now
