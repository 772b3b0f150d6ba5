"""What a backward graph leaves in its own memory -> gradients that autograd and the caller may keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from graphdoctor.graphs.modules.captured_call import ToCapture

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
