"""Calls of a captured model: a replay answers if every guard check passes, else the model runs eagerly.

A call is checked in two stages. Before the launch: inputs, gradients, modes. While the GPU works: whether the
model's attributes, hooks and addresses are those of the capture; if not, the answer is discarded and the model
is called. A graph that changes state, draws random numbers or writes over what the caller may hold runs both
checks before the launch.

Most calls have the form of an earlier one: `last` answers these at once (`known_call.py`). Any other goes through
`call`, by the key of its inputs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphdoctor.captured.forward_graph import Answering, GuardedGraph
from graphdoctor.captured.growth import Growth
from graphdoctor.captured.known_call import NOT_KNOWN, KnownCall, known_call, unknown
from graphdoctor.graphs.calls import Unwatchable, form_of, signature
from graphdoctor.graphs.calls.signature import Key
from graphdoctor.graphs.calls.tally import BUSY, NEEDS_GRADIENTS, RELEASED
from graphdoctor.graphs.graphed_callable import Tensors
from graphdoctor.graphs.guards import Modes
from graphdoctor.graphs.tensor_layouts import wants_gradient
from graphdoctor.target import Inputs

_MOST_REASONS = 32
_MOST_FORMS = 4  # of one shape
_MOST_SHAPES = 256
_OTHER = "other reasons"

Eager = Callable[..., object]


class Replays:
    """The graphs of one model, by the key of their inputs.

    The model is called wherever no graph may answer; `training`, if there is one, where gradients
    are wanted, and `parts` where the whole is not captured at all, as `why_not` says. `growth` says
    what answers inputs of another make, if anything does. `fallbacks` counts the calls that no graph
    answered, by their reason.
    """

    def __init__(
        self, model: torch.nn.Module, *, context: Modes, growth: Growth | None = None
    ) -> None:
        self.why_not = "it is not captured as a whole"
        self._model = model
        self.training: Eager | None = None
        self.parts: Eager | None = None
        self.fallbacks: Counter[str] = Counter()
        self._served_before = 0  # by graphs that were released
        self._graphs: dict[Key, Answering] = {}
        self.last: KnownCall = unknown
        self._known: dict[object, tuple[KnownCall, ...]] = {}  # by the shape of the first argument
        self._growth = growth
        self._context = context
        self._lock = threading.Lock()
        self.is_doubtful = False  # the model was found changed, or all was released
        self._stream: Any = None
        self.on_stream = 0

    @property
    def graphs(self) -> list[Answering]:
        return list(self._graphs.values())

    @property
    def replayed(self) -> int:
        """How many calls a graph has answered."""
        return self._served_before + sum(graph.served for graph in self._graphs.values())

    def add(self, graph: Answering) -> None:
        if not self._graphs:
            self._stream = torch.cuda.current_stream()
            self.on_stream = self._context.stream_number()
        self._graphs[graph.key] = graph

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The model's answer to these arguments, where `last` does not know it."""
        for known in self._known.get(_first_shape(args, kwargs), ()):
            answer = known(self, args, kwargs) if known is not self.last else NOT_KNOWN
            if answer is not NOT_KNOWN:
                self.last = known
                return answer
        return self._call_by_key(args, kwargs)

    def _call_by_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if not self._graphs:
            return self._without_graph(args, kwargs)
        # Those that it has now: a graph that is made later is of a model that may have got others.
        if torch.is_grad_enabled() and any(map(wants_gradient, self._model.parameters())):
            return self._with_gradients(args, kwargs)
        try:
            key, tensors = signature(args, kwargs)
        except Unwatchable as reason:
            return self.fall_back(str(reason), args, kwargs)
        if torch.is_grad_enabled() and any(map(wants_gradient, tensors)):
            return self._with_gradients(args, kwargs)
        if not self._context.is_same():
            return self.fall_back(self._context.difference(), args, kwargs)
        if not self._lock.acquire(blocking=False):
            return self.fall_back(BUSY, args, kwargs)
        try:
            graph = self._graphs.get(key) or self._grown(key, Inputs(args, kwargs))
            if isinstance(graph, str):
                answer, why = None, graph
            else:
                answer, why = self._replay(graph, tensors)
                if not why:
                    self._remember(args, kwargs, graph)
        finally:
            self._lock.release()
        return answer if not why else self.fall_back(why, args, kwargs)

    def _remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], graph: Answering) -> None:
        form = form_of(args, kwargs)
        if form is None:
            return
        shape = _first_shape(args, kwargs)
        if shape not in self._known and len(self._known) >= _MOST_SHAPES:
            del self._known[next(iter(self._known))]
        parameters = list(self._model.parameters())
        self.last = known = known_call(
            form, graph, context=self._context, parameters=parameters, lock=self._lock
        )
        self._known[shape] = (known, *self._known.get(shape, ()))[:_MOST_FORMS]

    def _without_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if torch.is_grad_enabled() and self.training is not None:
            return self.training(*args, **kwargs)
        if self.parts is not None:
            return self.parts(*args, **kwargs)
        return self.fall_back(self.why_not, args, kwargs)

    def _with_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if self.training is None:
            return self.fall_back(NEEDS_GRADIENTS, args, kwargs)
        return self.training(*args, **kwargs)

    def _replay(self, graph: Answering, tensors: Tensors) -> tuple[object, str]:
        """The answer and "", or the reason why it does not count."""
        looks_first = self.is_doubtful or not graph.traits.may_run_for_nothing
        if looks_first and (why := self.change_of(graph)):
            return None, why
        if self._context.stream_number() != self.on_stream:
            self.follow_stream()
        answer = graph.forward(tensors)
        if not looks_first and (why := self.change_of(graph)):
            return None, why
        graph.served += 1
        return answer, ""

    def change_of(self, graph: Answering) -> str:
        """What changed in the model, in one sentence; "" for nothing that counts."""
        why = "" if graph.state.is_same() else graph.state.difference()
        self.is_doubtful = bool(why)
        return why

    def follow_stream(self) -> None:
        """The graph's memory is used on one stream after the other, never on two at a time."""
        stream = torch.cuda.current_stream()
        stream.wait_stream(self._stream)
        self._stream, self.on_stream = stream, self._context.stream_number()

    def _forget(self) -> None:
        self.last = unknown
        self._known.clear()

    def _grown(self, key: Key, inputs: Inputs) -> Answering | str:
        if self._growth is None:
            return self.why_not
        made = self._growth.answering(key, inputs)
        if not isinstance(made, str):
            self._graphs[key] = made
        return made

    def fall_back(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        counted = reason in self.fallbacks or len(self.fallbacks) < _MOST_REASONS
        self.fallbacks[reason if counted else _OTHER] += 1
        return self._model(*args, **kwargs)

    def release(self) -> None:
        """Give the memory of all graphs back; calls are eager from now on."""
        with self._lock:
            self._served_before = self.replayed
            for graph in self.graphs:
                if isinstance(graph, GuardedGraph):
                    graph.release()
            self._graphs.clear()
            if self._growth is not None:
                self._growth.release()
            self._forget()
            self.is_doubtful = True  # for a call that is just going to start
            self.why_not = RELEASED
            self.training = self.parts = None


def _first_shape(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    first = args[0] if args else next(iter(kwargs.values()), None)
    return first.shape if isinstance(first, torch.Tensor) else None
