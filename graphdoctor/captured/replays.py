"""A call of a captured model -> the answer of a replay where every guard holds, else eager's.

A call is checked in two parts. What decides whether the graph may be started is checked before:
inputs, gradients, modes. Whether the model is still the captured one takes a look at all of its
attributes and addresses, and is checked while the GPU is at work; if it is not, the answer is thrown
away and the model is called. A graph that changes state or draws random numbers must not run for
nothing, so there everything is checked before.

Most calls are of the same form as one before, which `CallForm` tells at once. Any other takes the
long way, through the key of its inputs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from graphdoctor.captured.forward_graph import GuardedGraph
from graphdoctor.graphs.calls import CallForm, Tensors, Unwatchable, form_of, mismatch, signature
from graphdoctor.graphs.guards import Modes, emulated_device
from graphdoctor.target import Inputs

_MOST_REASONS = 32
_MOST_FORMS = 4
_OTHER = "other reasons"
_RELEASED = "it was released"
_BUSY = "another call was under way"
_GRADIENTS = (
    "gradients are wanted, and the model was captured without them: call it under torch.no_grad(), "
    'or capture it with mode="training"'
)
_are_gradients_enabled = torch.is_grad_enabled
_wants_gradient = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]

Eager = Callable[..., object]
Grow = Callable[[Inputs], GuardedGraph | str]


class Replays:
    """The graphs of one model, by the key of their inputs.

    The model is called wherever no graph may answer; `training`, if there is one, where gradients
    are wanted, and `parts` where the whole is not captured at all, as `why_not` says. `grow` makes a
    graph for inputs of another make while there are fewer than `max_graphs`, or gives the reason
    why it cannot. `fallbacks` counts the calls that no graph answered, by their reason.
    """

    def __init__(
        self, model: torch.nn.Module, *, context: Modes, max_graphs: int, grow: Grow
    ) -> None:
        self._parameters = list(model.parameters())
        self.why_not = "it is not captured as a whole"
        self._model = model
        self.training: Eager | None = None
        self.parts: Eager | None = None
        self.fallbacks: Counter[str] = Counter()
        self.replayed = 0
        self._graphs: dict[object, GuardedGraph | str] = {}
        self._forms: tuple[tuple[CallForm, GuardedGraph], ...] = ()  # of late, newest first
        self._max_graphs = max_graphs
        self._grow = grow
        self._context = context
        self._lock = threading.Lock()
        self._is_suspect = False  # the model was found changed: look before each start
        self._stream_number: Callable[[], int] = lambda: 0
        self._stream: Any = None
        self._on_stream = 0

    @property
    def graphs(self) -> list[GuardedGraph]:
        return [graph for graph in self._graphs.values() if isinstance(graph, GuardedGraph)]

    def add(self, graph: GuardedGraph) -> None:
        if not self._graphs:
            self._stream_number = current_stream_number()
            self._stream, self._on_stream = torch.cuda.current_stream(), self._stream_number()
        self._graphs[graph.key] = graph

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The model's answer to these arguments."""
        if not _are_gradients_enabled() or not any(map(_wants_gradient, self._parameters)):
            for form, graph in self._forms:
                tensors = form.tensors_of(args, kwargs)
                if tensors is not None:
                    return self._guarded(args, kwargs, graph, tensors)
        return self._call_by_key(args, kwargs)

    def _guarded(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        graph: GuardedGraph,
        tensors: Tensors,
    ) -> object:
        """Replay for inputs that are of the captured make, where modes and the model are too."""
        if not self._context.is_same():
            return self._fall_back(self._context.difference(), args, kwargs)
        if not self._lock.acquire(blocking=False):
            return self._fall_back(_BUSY, args, kwargs)
        try:
            # Another thread may have released the graph since.
            answer, why = self._replay(graph, tensors) if self._forms else (None, _RELEASED)
        finally:
            self._lock.release()
        return answer if not why else self._fall_back(why, args, kwargs)

    def _call_by_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if not self._graphs:
            return self._without_graph(args, kwargs)
        if torch.is_grad_enabled() and any(map(_wants_gradient, self._parameters)):
            return self._with_gradients(args, kwargs)
        try:
            key, tensors = signature(args, kwargs)
        except Unwatchable as reason:
            return self._fall_back(str(reason), args, kwargs)
        if torch.is_grad_enabled() and any(map(_wants_gradient, tensors)):
            return self._with_gradients(args, kwargs)
        if not self._context.is_same():
            return self._fall_back(self._context.difference(), args, kwargs)
        if not self._lock.acquire(blocking=False):
            return self._fall_back(_BUSY, args, kwargs)
        try:
            graph = self._graphs.get(key)
            if graph is None:
                graph = self._graph_for_new(key, Inputs(args, kwargs))
            if isinstance(graph, str):
                answer, why = None, graph
            else:
                self._remember(form_of(args, kwargs), graph)
                answer, why = self._replay(graph, tensors)
        finally:
            self._lock.release()
        return answer if not why else self._fall_back(why, args, kwargs)

    def _remember(self, form: CallForm | None, graph: GuardedGraph) -> None:
        if form is not None:
            self._forms = ((form, graph), *self._forms)[:_MOST_FORMS]

    def _without_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if torch.is_grad_enabled() and self.training is not None:
            return self.training(*args, **kwargs)
        if self.parts is not None:
            return self.parts(*args, **kwargs)
        return self._fall_back(self.why_not, args, kwargs)

    def _with_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if self.training is None:
            return self._fall_back(_GRADIENTS, args, kwargs)
        return self.training(*args, **kwargs)

    def _replay(self, graph: GuardedGraph, tensors: Tensors) -> tuple[object, str]:
        """The answer and "", or the reason why it does not count."""
        looks_first = self._is_suspect or not graph.traits.repeats
        if looks_first and (why := self._change_of(graph)):
            return None, why
        if self._stream_number() != self._on_stream:
            self._follow_stream()
        forward = graph.forward
        forward.load(tensors)
        forward.replay()
        answer = forward.build(tensors)
        if not looks_first and not graph.state.is_same() and (why := self._change_of(graph)):
            return None, why
        self.replayed += 1
        return answer, ""

    def _change_of(self, graph: GuardedGraph) -> str:
        why = "" if graph.state.is_same() else graph.state.difference()
        self._is_suspect = bool(why)
        return why

    def _follow_stream(self) -> None:
        """The graph's memory is used on one stream after the other, never on two at a time."""
        stream = torch.cuda.current_stream()
        stream.wait_stream(self._stream)
        self._stream, self._on_stream = stream, self._stream_number()

    def _graph_for_new(self, key: object, inputs: Inputs) -> GuardedGraph | str:
        if len(self._graphs) < self._max_graphs:
            made = self._graphs[key] = self._grow(inputs)
            return made
        captured = [graph.static_inputs for graph in self.graphs]
        return min((mismatch(each, inputs) for each in captured), key=len)

    def _fall_back(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        counted = reason in self.fallbacks or len(self.fallbacks) < _MOST_REASONS
        self.fallbacks[reason if counted else _OTHER] += 1
        return self._model(*args, **kwargs)

    def release(self) -> None:
        """Give the memory of all graphs back; calls are eager from now on."""
        with self._lock:
            for graph in self.graphs:
                graph.release()
            self._graphs.clear()
            self._forms = ()
            self.why_not = _RELEASED
            self.training = self.parts = None


def current_stream_number() -> Callable[[], int]:
    """A function that tells the streams of the current device apart."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None or emulated_device() is not None:
        return lambda: int(torch.cuda.current_stream().cuda_stream)
    return partial(raw, torch.cuda.current_device())
