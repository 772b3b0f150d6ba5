"""Run a step once, and collect in order the graphs and eager calls that it consists of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from graphdoctor.graphs.capture import Capture, Pool
from graphdoctor.graphs.split.glue import Call, GlueCall, Gradients, glue_objects
from graphdoctor.graphs.split.optimizer_step import OptimizerStep
from graphdoctor.graphs.split.pending import Watch, read
from graphdoctor.graphs.static_inputs import is_same_value
from graphdoctor.target.frames import Place
from graphdoctor.target.state.snapshot import named_state, named_tensors
from graphdoctor.values.locations import line_of

_ABSENT = object()


class PythonChanges:
    """Compares state before and after each stretch of the step's own Python.

    `rebound` has the tensors that it put into attributes, by path; None where it removed one. Each
    call leaves those of the captured run behind. What the glue looks at must not change there at
    all: an optimizer whose rate the step sets in Python would go on with the captured one.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self.rebound: dict[str, torch.Tensor | None] = {}
        self._roots = roots
        self._glue = glue_objects(roots)
        self._before: dict[str, torch.Tensor] = {}
        self._glue_before: dict[str, object] = {}

    def before_python(self) -> None:
        self._before = named_tensors(self._roots, with_gradients=False)
        self._glue_before = self._glue_state()

    def after_python(self, watch: Watch) -> None:
        """Raises `StepRefused` where Python changed what the glue depends on."""
        after = self._glue_state()
        for path in self._glue_before.keys() | after.keys():
            if not _is_same(self._glue_before.get(path, _ABSENT), after.get(path, _ABSENT)):
                owners = [name for name in self._glue if path.startswith(name)]
                owner = max(owners, key=len, default="an optimizer, schedule or scaler")
                watch.refuse(
                    f"the step changes {path} in Python, on which {owner} depends; "
                    "Python between the graphs is not run again"
                )
        now = named_tensors(self._roots, with_gradients=False)
        for path in self._before.keys() | now.keys():
            if self._before.get(path) is not now.get(path):
                self.rebound[path] = now.get(path)

    def _glue_state(self) -> dict[str, object]:
        # Gradients come and go in every step; `Gradients` keeps track of them.
        tensors, values = named_state(self._glue, with_gradients=False)
        return {**values, **tensors}


def _is_same(before: object, after: object) -> bool:
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        return before is after
    if before is _ABSENT or after is _ABSENT:
        return False
    return is_same_value(before, after)


class Piece(Protocol):
    """One part of a step: a graph, or a call that is made again."""

    def run(self) -> object: ...


class Segment:
    """A graph between two calls."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def run(self) -> None:
        self.graph.replay()


class BreakableCapture:
    """A capture that ends at a call of the glue, and goes on behind it in the next graph.

    A capture computes nothing, so each graph is replayed as soon as it is there: the call after it
    finds the values of a real step. All graphs share one pool of memory, and are replayed in the
    order of their captures only.
    """

    def __init__(self, side: Any, changes: PythonChanges, trained: Iterable[torch.Tensor]) -> None:
        self.pieces: list[Piece] = []
        self.places: list[Place] = []  # of the calls
        self.watch = Watch()
        self.changes = changes
        self._trained = tuple(trained)
        self._side = side
        self._pool = Pool()
        self._thread = threading.get_ident()
        self._running: Capture | None = None
        self._making: GlueCall | None = None
        self._steps: list[OptimizerStep] = []
        self._left: Gradients | None = None  # by the last call

    @property
    def graphs(self) -> list[Any]:
        """All graphs, those of optimizers too."""
        found = [piece.graph for piece in self.pieces if isinstance(piece, Segment)]
        return [*found, *(step.graph for step in self._steps if step.graph is not None)]

    @property
    def is_inside_call(self) -> bool:
        """Whether a call of the glue is being made: what that calls in turn is part of it."""
        return self._making is not None

    def begin(self) -> None:
        """Capture what follows."""
        with self.watch.asleep():
            self.changes.before_python()
        self._start()

    def end(self) -> None:
        """Close the running graph and replay it; one without a kernel is dropped."""
        graph = self._stop()
        with self.watch.asleep():
            self.changes.after_python(self.watch)
        if graph is not None:
            graph.replay()
            self.pieces.append(Segment(graph))

    def reset(self) -> None:
        """Leave a capture that is under way, and give all graphs back."""
        running, self._running = self._running, None
        for graph in (running, *self.graphs):
            if graph is not None:
                graph.reset()
        self.pieces.clear()
        self._left = None
        self._steps.clear()

    def make(self, call: Call) -> object:
        """Make a call between two graphs, and remember it as a piece."""
        self._check_can_break(call)
        self.end()
        self.places.append(call.place)
        piece = self._making = GlueCall(call, self._gradients_for(call), self.watch)
        try:
            result = piece.first()
        finally:
            self._making = None
        self._begin_after(piece)
        return result

    def step_in_call(self, optimizer: torch.optim.Optimizer, step: Callable[[], object]) -> object:
        """An optimizer's step that a call of the glue makes, or leaves out: a graph within it."""
        assert self._making is not None
        made = OptimizerStep(optimizer, step)
        self._capture_step(made, step)
        self._making.steps.append(made)
        return None

    def step_alone(self, call: Call, optimizer: torch.optim.Optimizer) -> object:
        """An optimizer's step as a graph of its own, which falls back to the call itself."""
        self._check_can_break(call)
        self.end()
        self.places.append(call.place)
        made = OptimizerStep(optimizer, call.function)
        alone = Call(call.name, made, (), {}, call.place)
        piece = GlueCall(alone, self._gradients_for(call), self.watch)
        self._capture_step(made, call.again)
        self._begin_after(piece)
        return None

    def gradients_at_end(self) -> Gradients | None:
        """Those that the step leaves behind; None where its last call did."""
        return self._unless_left(Gradients(self._trained))

    def _gradients_for(self, call: Call) -> Gradients | None:
        return self._unless_left(Gradients([*self._trained, *_leaves_in(call.args)]))

    def _unless_left(self, gradients: Gradients) -> Gradients | None:
        left = self._left
        return gradients if left is None or gradients.differ_from(left) else None

    def _begin_after(self, piece: GlueCall) -> None:
        self._left = Gradients([*self._trained, *_leaves_in(piece.call.args)])
        self.pieces.append(piece)
        self.begin()

    def _capture_step(self, made: OptimizerStep, step: Callable[[], object]) -> None:
        self._steps.append(made)
        self._start()
        step()
        graph = self._stop()
        if graph is not None:
            graph.replay()
            made.take(graph)

    def _start(self) -> None:
        self._running = Capture(self._side, self._pool)
        self._running.begin()

    def _stop(self) -> Any:
        """The graph that was running; None where nothing was captured."""
        assert self._running is not None
        is_empty = self._running.end()
        running, self._running = self._running, None
        if is_empty:
            running.reset()
            return None
        return running.graph

    def _check_can_break(self, call: Call) -> None:
        where = f"{call.name} in {line_of(call.place.location)}"
        if threading.get_ident() != self._thread or is_in_backward():
            self.watch.refuse(f"{where} runs inside the backward pass, which a graph cannot leave")
        if torch.cuda.current_stream() != self._side:
            self.watch.refuse(f"{where} runs on another stream than the step")


def is_in_backward() -> bool:
    """Whether autograd's engine is running this code, as it does hooks."""
    return bool(torch._C._current_graph_task_id() != -1)


def _leaves_in(args: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among a call's arguments that gradients belong to."""
    found: list[torch.Tensor] = []
    for arg in map(read, args):
        items = arg if isinstance(arg, (list, tuple)) else (arg,)
        found.extend(
            item
            for item in items
            if isinstance(item, torch.Tensor) and item.is_leaf and item.requires_grad
        )
    return found


def trained_tensors(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Those that can have a gradient."""
    return [tensor for tensor in tensors.values() if tensor.is_leaf and tensor.requires_grad]
