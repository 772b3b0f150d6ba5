"""A model whose captured module calls are replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from graphdoctor.graphs.calls import Unwatchable, distinct, mismatch
from graphdoctor.graphs.guards import Guard, Modes
from graphdoctor.graphs.modules.call_graphs import Graph
from graphdoctor.graphs.modules.observe import (
    Signature,
    put_forward,
    signature_of,
    swapped_forward,
    take_back,
)
from graphdoctor.target.target import Inputs

_BUSY = "an earlier call still waits for its backward pass"
_RELEASED = "its graphs were released"


class GraphedModule:
    """Called in place of a module's forward.

    `captured` has, by the signature of a call, its graphs and the inputs that they read. `replays`
    counts the calls that a graph served, `fallbacks` the others by their reason.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        modes: Modes,
        captured: Mapping[Signature, tuple[Inputs, Sequence[Graph]]],
    ) -> None:
        self.module = module
        self.forward: Callable[..., Any] = module.forward
        self.replays = 0
        self.fallbacks: Counter[str] = Counter()
        self._modes = modes
        self._guard = Guard({"": module}, around=module)
        self._graphs = {signature: graphs for signature, (_, graphs) in captured.items()}
        self._inputs = {signature: inputs for signature, (inputs, _) in captured.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            signature, tensors = signature_of(args, kwargs)
        except Unwatchable as reason:
            return self._fall_back(str(reason), args, kwargs)
        graphs = self._graphs.get(signature)
        if graphs is None:
            reasons = [  # of all captured calls; the shortest is that of the nearest
                signature.mode.difference(captured.mode)
                or mismatch(inputs, Inputs(args, kwargs), grad=signature.mode.grad)
                for captured, inputs in self._inputs.items()
            ]
            return self._fall_back(min(reasons, default=_RELEASED, key=len), args, kwargs)
        if why := self._change(grad=signature.mode.grad):
            return self._fall_back(why, args, kwargs)
        for graph in graphs:
            if graph.is_free:
                self.replays += 1
                # A tensor that is given twice has one place in the graph.
                return graph(distinct(tensors) if signature.repeats else tensors)
        return self._fall_back(_BUSY, args, kwargs)

    def _change(self, *, grad: bool) -> str:
        """Why no graph may be replayed now, whatever the call is."""
        if not self._modes.is_same():
            return self._modes.difference() or "torch's modes changed"
        if self._guard.is_same() and (not grad or self._guard.gradients_are_same()):
            return ""
        return self._guard.difference(grad=grad)

    def _fall_back(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.fallbacks[why] += 1
        return self.forward(*args, **kwargs)

    @property
    def graphs(self) -> int:
        """How many graphs there are."""
        return sum(map(len, self._graphs.values()))

    def release(self) -> None:
        """Give the graphs back; calls run the original forward from now on."""
        for graphs in self._graphs.values():
            for graph in graphs:
                graph.release()
        self._graphs.clear()
        self._inputs.clear()


class GraphedModules:
    """The graphed modules by their paths, and the reasons why others were `left_out`.

    Nothing is in place until `install()`. A module whose forward somebody else has replaced since
    the capture stays as it is. `notes` says of graphed modules which of their calls run eagerly.
    """

    def __init__(
        self,
        modules: Mapping[str, GraphedModule],
        left_out: Mapping[str, str],
        notes: Mapping[str, str],
    ) -> None:
        self.modules = dict(modules)
        self.left_out = dict(left_out)
        self.notes = dict(notes)
        self._before: list[tuple[GraphedModule, object]] = []

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the graphed modules, in the order in which they were found."""
        return tuple(self.modules)

    @property
    def replays(self) -> int:
        """How many calls a graph has served."""
        return sum(module.replays for module in self.modules.values())

    @property
    def fallbacks(self) -> Counter[str]:
        """How many calls ran eagerly, by "path: reason"."""
        counted: Counter[str] = Counter()
        for path, module in self.modules.items():
            for reason, count in module.fallbacks.items():
                counted[f"{path}: {reason}" if path else reason] += count
        return counted

    def install(self) -> None:
        """Put the graphed forwards in place; does nothing where they are."""
        if self._before:
            return
        for graphed in self.modules.values():
            if graphed.module.forward == graphed.forward:
                before = put_forward(graphed.module, graphed)
                self._before.append((graphed, before))

    def uninstall(self) -> None:
        """Put back what was there before."""
        while self._before:
            graphed, before = self._before.pop()
            if graphed.module.__dict__.get("forward") is graphed:
                take_back(graphed.module, before)

    @contextmanager
    def apart(self, inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """The modules run eagerly in the block, each call `inside`, with their gradients added up as graphs do.

        A graph gives one gradient for each input. Where the input is used outside too, that one is added as
        a whole to those from there, which is another order than eager's: another rounding, and nothing else.
        """

        def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map_only(torch.Tensor, _own_input, (args, kwargs))
            with inside():
                return forward(*args, **kwargs)

        with ExitStack() as stack:
            for graphed in self.modules.values():
                stack.enter_context(swapped_forward(graphed.module, run))
            yield

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The graphed forwards are in place inside the block."""
        self.install()
        try:
            yield
        finally:
            self.uninstall()

    def release(self) -> None:
        """Put everything back, and give the graphs and their memory back."""
        self.uninstall()
        for graphed in self.modules.values():
            graphed.release()
        self.modules.clear()


def _own_input(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, in a tensor whose gradient is added up before it reaches that of the given one."""
    return tensor.clone() if tensor.requires_grad and torch.is_grad_enabled() else tensor
