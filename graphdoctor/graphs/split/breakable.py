"""Run a step in graphs with eager calls between them, once to capture it and then again; stand-ins end the graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.graphs.capture import Capture, Pool
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.split.glue import (
    ERROR_IF_NONFINITE,
    METHODS,
    Call,
    GlueCall,
    Gradients,
    OptimizerStep,
    Pending,
    Watch,
    glue_objects,
    has_number_as_rate,
    read,
    why_not_captured,
)
from graphdoctor.graphs.static_inputs import StaticInputs, is_same_value
from graphdoctor.target import Inputs
from graphdoctor.target.frames import Place, locate
from graphdoctor.target.state.snapshot import Snapshot, named_state, named_tensors
from graphdoctor.target.state.tree import Tree
from graphdoctor.values.locations import Location, line_of

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


class BreakableCapture:
    """A capture that ends at a call of the glue, and goes on behind it in the next graph.

    A capture computes nothing, so each graph is replayed as soon as it is there: the call after it
    finds the values of a real step. All graphs share one pool of memory, and are replayed in the
    order of their captures only.
    """

    def __init__(self, side: Any, changes: PythonChanges, trained: Iterable[torch.Tensor]) -> None:
        self.pieces: list[Any] = []  # graphs, and each call between two of them as a GlueCall
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
        found = [piece for piece in self.pieces if not isinstance(piece, GlueCall)]
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
            self.pieces.append(graph)

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


class _StandIn:
    """Looks like the method that it replaces, to code that inspects it."""

    def __init__(self, original: Callable[..., object], instead: Callable[..., object]) -> None:
        update_wrapper(self, original)
        self._instead = instead

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._instead(*args, **kwargs)


class Glue:
    """Puts stand-ins into a step's optimizers, schedules, scalers and torch's own functions."""

    def __init__(
        self, capture: BreakableCapture, objects: Mapping[str, object], *, rates_change: bool
    ) -> None:
        self._capture = capture
        self._objects = objects
        self._rates_change = rates_change

    def stand_in(self, patches: Patches) -> None:
        """Replace the calls until the patches are taken back."""
        for path, value in self._objects.items():
            if isinstance(value, torch.optim.Optimizer):
                patches.set(value, "step", self._optimizer_step(path, value))
            for kind, methods in METHODS:
                for method in methods if isinstance(value, kind) else ():
                    self._method(patches, path, value, method)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            patches.replace(module, "clip_grad_norm_", self._clipping)
        for method in ("item", "tolist"):
            patches.replace(torch.Tensor, method, self._reading(method))
        patches.reach_imported_names()

    def _method(self, patches: Patches, path: str, owner: object, method: str) -> None:
        original = getattr(owner, method)
        name = f"{path}.{method}()"
        instead = _StandIn(
            original, lambda *args, **kwargs: self._make(name, original, args, kwargs)
        )
        patches.set(owner, method, instead)

    def _make(
        self,
        name: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        if self._capture.is_inside_call:
            return function(*args, **kwargs)
        return self._capture.make(_call(name, function, args, kwargs))

    def _optimizer_step(self, path: str, optimizer: torch.optim.Optimizer) -> _StandIn:
        original: Any = optimizer.step
        name = f"{path}.step()"

        def step(*args: object, **kwargs: object) -> object:
            capture = self._capture
            is_plain = not args and not kwargs
            if not is_plain and (args or kwargs.get("closure") is not None):
                capture.watch.refuse(
                    f"{name} is given a closure, which runs the forward and backward pass itself"
                )
            may_capture = is_plain and self._is_capturable(optimizer)
            if capture.is_inside_call:
                # Fused optimizers get new tensors from the scaler in each step.
                if may_capture and not getattr(optimizer, "_step_supports_amp_scaling", False):
                    return capture.step_in_call(optimizer, original)
                return original(*args, **kwargs)
            call = _call(name, original, args, kwargs)
            if may_capture:
                return capture.step_alone(call, optimizer)
            return capture.make(call)

        return _StandIn(original, step)

    def _is_capturable(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._rates_change and has_number_as_rate(optimizer):
            return False
        return not why_not_captured(optimizer)

    def _clipping(self, original: Callable[..., object]) -> Callable[..., object]:
        """It reads the norm only where it is to raise an error; else it belongs in a graph."""

        def clip_grad_norm_(*args: Any, **kwargs: Any) -> object:
            reads = kwargs.get("error_if_nonfinite", False)
            if len(args) > ERROR_IF_NONFINITE:
                reads = args[ERROR_IF_NONFINITE]
            if not reads:
                return original(*args, **kwargs)
            return self._make("clip_grad_norm_()", original, args, kwargs)

        return clip_grad_norm_

    def _reading(self, method: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
        def make(original: Callable[..., object]) -> Callable[..., object]:
            def read(tensor: torch.Tensor) -> object:
                if not tensor.is_cuda or self._capture.is_inside_call or is_in_backward():
                    return original(tensor)
                return self._make(f"{method}()", original, (tensor.detach(),), {})

            return read

        return make


def _call(
    name: str,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> Call:
    """A generator, such as model.parameters(), can be gone through once: it becomes a list."""
    lasting = {key: _lasting(value) for key, value in kwargs.items()}
    return Call(name, function, tuple(map(_lasting, args)), lasting, locate())


def _lasting(value: object) -> object:
    return list(value) if issubclass(type(value), Iterator) else value  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Made:
    """What the captured run took and gave; `start` is the state that it began with."""

    static_inputs: Inputs
    outputs: object
    gradients: Gradients | None
    start: Snapshot


class Graphs:
    """Several emulated graphs, queried as one."""

    def __init__(self, capture: BreakableCapture) -> None:
        self._capture = capture

    def last_writer(self, tensor: torch.Tensor) -> tuple[str, Location | None] | None:
        """The last captured operator that wrote into a tensor; the glue between may have since."""
        for graph in reversed(self._capture.graphs):
            asked = getattr(graph, "last_writer", None)
            written: tuple[str, Location | None] | None = asked(tensor) if asked else None
            if written is not None:
                return written
        return None

    @property
    def device(self) -> object:
        """The emulated device, or None."""
        return next((getattr(graph, "device", None) for graph in self._capture.graphs), None)


class BuiltSplit:
    """Graphs with the glue between them, which is run for real in each call."""

    def __init__(self, roots: Mapping[str, object], capture: BreakableCapture, made: Made) -> None:
        self.graph = Graphs(capture)
        self.start = made.start
        self.static_inputs = made.static_inputs
        self._static = StaticInputs(made.static_inputs)
        self._roots = roots
        self._capture = capture
        self._made = made
        self._outputs = Tree(made.outputs)

    @property
    def operators(self) -> int:
        """How many operators are in graphs; 0 where the graphs do not tell."""
        return sum(int(getattr(graph, "operators", 0)) for graph in self._capture.graphs)

    def load(self, inputs: Inputs) -> None:
        """Copy fresh values into the static inputs. Raises `InputMismatch`."""
        self._static.load(inputs)

    def replay(self) -> None:
        """One step, on what was loaded and on the state as it is now."""
        for piece in self._capture.pieces:
            piece.run() if isinstance(piece, GlueCall) else piece.replay()
        if self._made.gradients is not None:
            self._made.gradients.put_back()

    def call(self, inputs: Inputs) -> object:
        self.load(inputs)
        self.replay()
        return self.outputs

    @property
    def outputs(self) -> object:
        """What the last call returns: the same tensors each time, and values that are read again."""
        return self._outputs.map(read)

    @property
    def footprint(self) -> Footprint:
        """What is there now; where the step's own Python put a tensor, the one of the captured run."""
        return self.left_behind(self.static_inputs, self.outputs)

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        seen = footprint(self._roots, self.static_inputs, outputs)
        tensors = dict(seen.tensors)
        for path, tensor in self._capture.changes.rebound.items():
            tensors.pop(path, None)
            if tensor is not None:
                tensors[path] = tensor
        return Footprint(tensors, seen.values, seen.host)

    def release(self) -> None:
        """Give the graphs and their memory back; it cannot be called any more."""
        self._capture.reset()
        if self._made.gradients is not None:
            self._made.gradients.forget()
        self._outputs = Tree(None)
        self._capture.changes.rebound.clear()


def holds_pending(value: object) -> bool:
    """Whether a value is one that the step read on the host."""
    return type(value) is Pending
