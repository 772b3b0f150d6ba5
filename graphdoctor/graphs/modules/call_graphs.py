"""One call of a module -> CUDA graphs of its forward, and of its backward if there is one, made safe to use."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from graphdoctor.graphs.calls import Outputs
from graphdoctor.graphs.capture import (
    capture_graph,
    device_usable_after_failure,
    no_word_of_empty_graphs,
)
from graphdoctor.graphs.graphed_callable import GraphedCallable
from graphdoctor.graphs.modules.captured_call import ToCapture
from graphdoctor.graphs.modules.gradients import Gradients


class Graph(Protocol):
    """A captured call. `is_free`: it can serve a call now."""

    @property
    def is_free(self) -> bool: ...

    def __call__(self, tensors: list[torch.Tensor]) -> Any: ...

    def release(self) -> None: ...


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
