"""`capture()` of a step: a function whose first calls run eagerly and are studied, and whose later calls are replays.

A step is a function that trains or infers: it reads and writes the state of modules, optimizers and
scalers, which it finds in its arguments, its closure and its globals.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MethodType
from typing import Any, NamedTuple, SupportsIndex

import torch

from graphdoctor.captured.known_call import NOT_KNOWN, unknown
from graphdoctor.captured.known_step import KnownStep, known_step
from graphdoctor.captured.obstacles import obstacles
from graphdoctor.captured.plan import CapturePlan, explain
from graphdoctor.captured.step_arguments import ChangingArguments
from graphdoctor.captured.step_calls import CallsOfKinds, LastCalls, WrittenArguments
from graphdoctor.captured.step_gradients import StartingGradients
from graphdoctor.captured.step_graph import (
    NUMBERS,
    RESULTS,
    StepGraph,
    form_of_call,
    is_state,
    signature_of_call,
)
from graphdoctor.captured.step_optimizers import (
    Numbers,
    OptimizerGuard,
    optimizers_in,
    scalers_in,
)
from graphdoctor.captured.step_python import (
    CodeSeen,
    PythonPart,
    Seen,
    Unsupported,
    python_part,
)
from graphdoctor.captured.step_results import KeptResults
from graphdoctor.captured.study import alone, no_device, watched_device
from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.observe.earlier_graphs import renew_held_accumulations
from graphdoctor.estimate import launches
from graphdoctor.graphs.calls import Unwatchable, distinct
from graphdoctor.graphs.calls.tally import AROUND, BUSY, RELEASED, WARMUP_CALLS, register
from graphdoctor.graphs.capturable import make_capturable
from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.guards import Modes
from graphdoctor.graphs.whole_step import CapturedStep as WholeStep
from graphdoctor.graphs.whole_step import capture_from_start, detached
from graphdoctor.pipeline import Setting, put_back, stages
from graphdoctor.proof.stage import prove_whole_step
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.rules.scalars_differ import ScalarsDiffer, unexplained_scalars
from graphdoctor.strategies.evidence import Studied
from graphdoctor.target import Inputs, Target
from graphdoctor.target.build import Origin, build
from graphdoctor.target.description import Description, named_state
from graphdoctor.target.program.saved_steps import in_turn
from graphdoctor.target.program.step import gradient_mode
from graphdoctor.target.roots import roots_among, roots_of
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.tree import leaves, map_leaves
from graphdoctor.values.errors import GraphDoctorError, UsageError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Mode

MOST_GRAPHS = 8
_ITERATIONS = 2
_MOST_SIGNATURES = 256  # of which each costs an entry, whether or not it gets a graph
_MANY_SIGNATURES = (
    f"its calls had {_MOST_SIGNATURES} signatures already: pass changing numbers as GPU tensors, and the same functions"
    " and objects in each call"
)
_ONLY_FORWARD = (
    "it returns a tensor that requires gradients and runs no backward pass: call backward() inside the step,"
    " or capture the model"
)
_READS_SCHEDULE = (
    "the step reads the progress of a learning rate schedule: move `get_last_lr()` after the step"
)
_PASS_NUMBER = (
    "Compute the number in the training loop, from a counter of the loop, and pass the number to the step as a"
    " float argument."
)
_MOST_KNOWN = 4


class _Call(NamedTuple):
    """What two calls share if one graph serves both, without the gradients that they find."""

    signature: Hashable
    modes: Hashable
    ways: Hashable


class Key(NamedTuple):
    """What two calls share if one graph serves both. `missing`: of each trained tensor, whether it has no gradient;
    empty if the step drops all gradients.
    """

    call: _Call
    missing: tuple[bool, ...]


class CapturedStep:
    """A step whose calls are replays of CUDA graphs, each proved to compute what eager computes.

    The first calls are ordinary steps of the program. Then one call is studied: the step is recorded,
    diagnosed, captured and compared with eager, and all state is restored. Of a step that trains nothing, the
    calls just before are run again, from what they found. That call and those after it are
    replays. A call of another signature (shapes, Python numbers, training flags) gets a graph of its own,
    up to `max_graphs`. Whatever does not fit runs eagerly and is counted by its reason.

    As a decorator of a method it captures the method of each object for itself, and so it does with a function whose
    arguments are a model or an object that holds one. A copy of an object, also one that was pickled, studies its own
    calls.

    Results are detached copies. `plan`, `coverage`, `fallbacks`, `explain()` and `release()` are as for a
    captured module.
    """

    def __init__(
        self,
        step: Callable[..., object],
        state: object = None,
        *,
        max_graphs: int = MOST_GRAPHS,
        is_counted: bool = True,
    ) -> None:
        functools.update_wrapper(self, step)
        self.name: str = getattr(step, "__name__", type(step).__name__)
        self.plan = CapturePlan("eager", obstacles=("it is studied after its first calls",))
        self._step = step
        self._state = named_state(state)
        self._max_graphs = max_graphs
        self._is_of_object = False  # made by `__get__`
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._warm_calls = 0
        self._seen: Counter[Key] = Counter()
        self._graphs: dict[Key, StepGraph] = {}
        self._known: dict[Key, KnownStep] = {}  # the last ones come last
        self._last: KnownStep = unknown
        self._refused: dict[Key, str] = {}
        self._served_before = 0
        self._off = ""
        self._optimizers: list[torch.optim.Optimizer] | None = None
        self._modules: list[torch.nn.Module] = []
        self._numbers = Numbers(())
        self._pool: Pool | None = None
        self._gradients = StartingGradients(())
        self._python: PythonPart | None = None
        self._why_no_python = ""
        self._code_seen = CodeSeen()
        self._results = KeptResults({}, self._code_seen)
        self._trains = False
        self._last_calls = CallsOfKinds()
        self._written = WrittenArguments()
        self._changing = ChangingArguments()
        # By the ids of the models and other objects among the arguments: itself for those of the first call.
        self._by_objects: dict[tuple[int, ...], CapturedStep] = {}
        if is_counted:
            register(self)

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        if self._off:
            return self._eager(self._off, args, kwargs)
        if not self._lock.acquire(False):
            return self._eager(BUSY, args, kwargs)
        try:
            if AROUND:
                flags = tuple(each for each in args if isinstance(each, bool))
                return AROUND[0](self, flags, lambda: self._call(args, kwargs))
            result = self._last(self, args, kwargs)
            return result if result is not NOT_KNOWN else self._call(args, kwargs, tried=self._last)
        finally:
            self._lock.release()

    def __get__(self, instance: object, owner: type | None = None) -> CapturedStep:
        """Return the captured method of one object. Raises `UsageError` for an object without `__dict__`."""
        if instance is None:
            return self
        try:
            held = vars(instance)
        except TypeError:
            raise UsageError(
                f"{type(instance).__name__} has `__slots__` and no `__dict__`, where the captured method"
                f' {self.name}() keeps its graphs: add "__dict__" to the slots.'
            ) from None
        bound = held.get(self._place)
        if bound is None or bound._step.__self__ is not instance:
            # All captured methods at once: an attribute that comes later is a change that guards find.
            classes = type(instance).__mro__
            for each in (value for cls in classes for value in vars(cls).values()):
                if isinstance(each, CapturedStep):
                    held[each._place] = each._bound_to(instance)
            bound = held[self._place]
        assert isinstance(bound, CapturedStep)
        return bound

    def _bound_to(self, instance: object) -> CapturedStep:
        method = MethodType(self._step, instance)
        bound = CapturedStep(method, self._state or None, max_graphs=self._max_graphs)
        bound._is_of_object = True
        return bound

    @property
    def _place(self) -> str:
        """The key of the bound step in an object's `__dict__`."""
        return f"captured {self._step.__module__}.{self._step.__qualname__}"

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """In a copy of its object there is none, until the copy's method is called."""
        return (type(None), ()) if self._is_of_object else super().__reduce_ex__(protocol)

    @property
    def replayed(self) -> int:
        """How many calls were replays."""
        here = self._served_before + sum(graph.served for graph in self._graphs.values())
        return here + sum(other.replayed for other in self._others)

    @property
    def coverage(self) -> float:
        """The share of one step's launches that are in graphs, 0.0 to 1.0."""
        return self.plan.coverage

    def fallbacks(self) -> Counter[str]:
        """Calls that ran eagerly, by their reason; the calls before the study are no fallbacks."""
        return sum((other.fallbacks() for other in self._others), Counter(self._counted))

    def explain(self) -> str:
        """What is replayed, what is not and why, in sentences."""
        return explain(
            self.name,
            self.plan,
            replayed=self.replayed,
            part_replays=0,
            fallbacks=self.fallbacks(),
        )

    def release(self) -> None:
        """Give the memory of all graphs back; calls are eager from now on."""
        with self._lock:
            self._forget()
            self._last_calls.forget()
            self._off = RELEASED
            for other in self._others:
                other.release()

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, tried: KnownStep = unknown
    ) -> object:
        if self._optimizers is None:
            if reason := no_device():
                self.plan = CapturePlan("eager", obstacles=(reason,))
                self._off = reason
                return self._eager(reason, args, kwargs)
            self._prepare(args, kwargs)
        for known in self._known.values():
            if known is tried:
                continue
            if (result := known(self, args, kwargs)) is not NOT_KNOWN:
                self._last = known
                return result
        other = self._for_objects(args, kwargs)
        if other is not self:
            return (
                other._eager(other._off, args, kwargs) if other._off else other._call(args, kwargs)
            )
        args, kwargs = self._changing.with_tensors(args, kwargs)
        try:
            key, tensors, seen = self._key(args, kwargs)
        except Unwatchable as reason:
            return self._eager(str(reason), args, kwargs)
        graph = self._graphs.get(key)
        if graph is not None:
            why = self._difference(graph, args, kwargs)
            if why and graph.adopts_loaded_state():
                why = self._difference(graph, args, kwargs)
            if why and graph.moves_options(self._numbers):
                self._forget()  # all graphs are captured again, with the option in a tensor
                return self._without_graph(key, args, kwargs)
            if why and why not in self._counted and self._results.finds_more():
                self._forget()  # all graphs are captured again, with these attributes as inputs
                return self._without_graph(key, args, kwargs)
            if why:
                return self._eager(why, args, kwargs)
            result = self.replay(graph, tensors, seen, args, kwargs)
            self._remember(key, graph, args, kwargs)
            return result
        return self._without_graph(key, args, kwargs)

    @property
    def _others(self) -> list[CapturedStep]:
        return [each for each in self._by_objects.values() if each is not self]

    def _for_objects(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CapturedStep:
        """The step that serves calls with these objects: one of their own, where weights are trained that the first
        call's objects do not have, since gradients, optimizers and numbers are those of a model.
        """
        objects = [each for each in (*args, *kwargs.values()) if is_state(each)]
        ids = tuple(map(id, objects))
        found = self._by_objects.get(ids)
        if found is not None or len(self._by_objects) == _MOST_SIGNATURES:
            return found or self
        held = named_tensors({str(at): each for at, each in enumerate(objects)})
        has_room = len(self._others) < self._max_graphs
        found = self
        if has_room and not self._gradients.cover(held.values()):
            found = CapturedStep(
                self._step, self._state or None, max_graphs=self._max_graphs, is_counted=False
            )
        self._by_objects[ids] = found
        return found

    def _remember(
        self, key: Key, graph: StepGraph, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Compare the next calls first with this one, which the graph has just served."""
        form = form_of_call(args, kwargs, self._written.places)
        if form is None:
            return
        self._known.pop(key, None)
        if len(self._known) == _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._last = self._known[key] = known_step(
            form,
            graph,
            missing=key.missing,
            ways=key.call.ways,
            numbers=self._numbers,
            gradients=self._gradients,
            changing=self._changing if self._changing.are_in(args, kwargs) else None,
            python=self._python,
            has_results=bool(self._results),
        )

    def replay(
        self,
        graph: StepGraph,
        tensors: Sequence[torch.Tensor],
        seen: Seen | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> object:
        """Replay a graph, and do what its step does on the CPU."""
        if why := graph.load_results():
            return self._eager(why, args, kwargs)
        self._numbers.fill()
        result: Any = graph.run(distinct(tensors))
        if self._results:
            result, left = result
            self._results.put(left)
        if self._python is not None and seen is not None:
            self._python.commit(seen, args, kwargs)
        return result

    def _difference(
        self, graph: StepGraph, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        """What changed since the capture; numbers and attributes that the step itself changes are no change."""
        with self._results.standing():
            if self._python is None:
                return graph.difference()
            return self._python.with_numbers(graph.numbers, graph.difference, args, kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Make optimizers capturable, before the first step creates their state."""
        held = {f"argument {at}": each for at, each in enumerate((*args, *kwargs.values()))}
        roots = {**self._state, **roots_of(self._step), **held}
        self._optimizers = optimizers_in(roots)
        for optimizer in self._optimizers:
            make_capturable(optimizer)
        self._numbers = Numbers(self._optimizers, is_scaled=bool(scalers_in(roots)))
        self._gradients = StartingGradients(named_tensors(roots).values())
        self._results = KeptResults(roots, self._code_seen)
        self._modules = [
            *{id(m): m for m in roots.values() if isinstance(m, torch.nn.Module)}.values()
        ]
        try:
            self._python = python_part(self._step, args, kwargs)
        except Unsupported as reason:
            self._why_no_python = str(reason)

    def _key(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Key, list[torch.Tensor], Seen | None]:
        """What two calls share if one graph serves both, the tensors of the call, and what its Python does."""
        signature, tensors = signature_of_call(args, kwargs, self._written.places)
        try:
            seen = self.seen_python(args, kwargs)
        except Exception as error:  # the step raises its own
            raise Unwatchable(f"its Python cannot be run: {error}") from error
        call = _Call(signature, self._modes_now(), seen.ways if seen is not None else ())
        return Key(call, self._gradients.key_of(call)), tensors, seen

    def _modes_now(self) -> tuple[object, ...]:
        flags = [module.training for module in self._modules]
        return (*flags, torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    def seen_python(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seen | None:
        """What the Python of a call does; None if there is none."""
        if self._python is None:
            return None
        floats, named = self._changing.with_floats(args, kwargs)
        return self._python.look(*floats, **named)

    def _without_graph(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if (reason := self._refused.get(key)) is not None:
            return self._eager(reason, args, kwargs)
        if len(self._seen) >= _MOST_SIGNATURES and key not in self._seen:
            return self._eager(_MANY_SIGNATURES, args, kwargs)
        self._seen[key] += 1
        self._warm_calls += 1
        has_room = len(self._graphs) < self._max_graphs
        has_calls = self._trains or not has_room or self._last_calls.are_enough(key)
        if self._warm_calls <= WARMUP_CALLS or self._seen[key] == 1 or not has_calls:
            return self._warm_up(key, args, kwargs)
        if not has_room:
            return self._eager(f"there are {self._max_graphs} graphs already", args, kwargs)
        if not self._graphs and self._results.refits():
            return self._warm_up(key, args, kwargs)
        made = self._studied(key, args, kwargs)
        if isinstance(made, str):
            if self._takes_numbers(args, kwargs):
                made = f"with its changing floats in GPU tensors: {made}"
                args, kwargs = self._changing.with_floats(args, kwargs)
                self._changing.fix()
                if self._results.fix_numbers():
                    self._forget()
            else:
                self._refused[key] = made
            if not self._graphs:
                self.plan = CapturePlan("eager", obstacles=(made,), mode=self._mode)
            return self._eager(made, args, kwargs)
        return self._add(made, args, kwargs)

    def _add(self, made: StepGraph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Serve this call, and others of its key, by a graph that was just made."""
        key, tensors, seen = self._key(args, kwargs)
        self._graphs[key] = made
        self.plan = CapturePlan(
            "whole",
            launches=made.launches,
            captured_launches=made.launches,
            mode=self._mode,
            graphs_of_step=len(self._graphs),
            proof=made.proof,
        )
        result = self.replay(made, tensors, seen, args, kwargs)
        self._remember(key, made, args, kwargs)
        return result

    def _eager(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if reason:
            self._counted[reason] += 1
        args, kwargs = self._changing.with_floats(args, kwargs)
        result = self._step(*args, **kwargs)
        return result if self._off == _ONLY_FORWARD else detached(result)

    @property
    def _mode(self) -> Mode:
        return "training" if self._trains else "inference"

    def _warm_up(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """An eager call that also shows what the step does with the gradients that it finds."""
        known, places = len(self._results), self._written.places
        floats, named = self._changing.with_floats(args, kwargs)
        if self._seen[key] > 1 and not self._trains and len(self._graphs) < self._max_graphs:
            inputs = Inputs(_on_gpu(args), _on_gpu(kwargs))
            held = {**roots_among(inputs, self._step), **self._written.among(inputs)}
            self._last_calls.add(key, inputs, {**self._state, **roots_of(self._step), **held})
        given = Inputs(args, kwargs)
        with (
            nullcontext() if self._trains else self._written.observed(given),
            self._gradients.observed(key.call) as observed,
            self._code_seen.listening(),
            self._results.observed(),
        ):
            result = self._step(*floats, **named)
        is_apart = not observed.has_run_backward and not self._code_seen.reads_gradients()
        self._gradients.note(key.call, leaves_alone=is_apart)
        if is_apart and key.missing:  # later calls have a key without gradients
            self._seen[Key(key.call, ())] += self._seen.pop(key)
        if observed.has_run_backward:
            self._trains = True
            self._last_calls.forget()
            self._written.forget()
        if len(self._results) != known or self._written.places != places:
            self._forget()  # all graphs are captured again, with these attributes as results, or arguments as state
        if observed.has_run_backward or not any(
            map(_requires_gradient, leaves(result, "result").values())
        ):
            return detached(result)
        self._off = _ONLY_FORWARD
        self.plan = CapturePlan("eager", obstacles=(_ONLY_FORWARD,))
        return result

    def _studied(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepGraph | str:
        """A proved graph of the step for such calls, or why there is none; all state is as before."""
        if self._code_seen.reads_schedule():
            return _READS_SCHEDULE
        if reason := self._stranger_to_python():
            self._python, self._why_no_python = None, reason
            self._forget()  # graphs of calls by their Python
        self._numbers.fill()
        calls, mode = self._last_calls.take(key), gradient_mode()
        try:
            with watched_device() as device, alone():
                target = self._target(args, kwargs, calls, mode)
                renew_held_accumulations(target.roots)
                modes = Modes()
                with put_back(target):
                    if calls is not None:
                        calls.rewind()
                    setting = Setting(device, AnalyzeOptions(iterations=_ITERATIONS, strategies=()))
                    studied = stages.study(target, setting)
                    if reason := next(iter(obstacles(studied)), ""):
                        if _is_computed_number(studied):
                            return f"{reason} {_PASS_NUMBER}"
                        return "; ".join(filter(None, (reason, self._why_no_python)))
                    made, proof = self._proved(studied, self._takes_numbers(args, kwargs))
                    if made is None:
                        return f"the capture was not proved: {proof}"
                    modes.watch(studied.recording)
                    iteration = studied.recording.captured[-1]
                    read = {external.storage for external in iteration.externals}

                    def is_read(tensor: torch.Tensor) -> bool:
                        return device.table.info(tensor).number in read

                    gradients = [
                        (parameter, gradient)
                        for parameter, gradient in self._gradients.now()
                        if gradient is not None and is_read(gradient)
                    ]
                    launched = sum(map(launches, iteration.ops))
                    seen = made
                numbers = self._python.read(*args, **kwargs) if self._python is not None else ()
                guards = [OptimizerGuard(each, self._numbers) for each in self._optimizers or ()]
                _, tensors = signature_of_call(args, kwargs, self._written.places)
                return StepGraph(
                    seen,
                    target,
                    tensors,
                    modes=modes,
                    optimizers=guards,
                    read_gradients=gradients,
                    results=self._results,
                    read_results=self._results.read_by(is_read),
                    launches=launched,
                    written=self._written.places,
                    leaves_gradients=self._gradients.are_left_alone(key.call),
                    numbers=numbers,
                    lends=self._code_seen.copies_unblocked(),
                    proof=proof if device.kind != "emulated" else "",
                )
        except Unwatchable as reason:
            return str(reason)
        except (GraphDoctorError, EmulationLimit) as error:
            return str(error)

    def _takes_numbers(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the step computes with floats of the program that are in tensors."""
        return self._changing.are_in(args, kwargs) or self._results.has_numbers

    def _proved(self, studied: Studied, takes_numbers: bool) -> tuple[WholeStep | None, str]:
        """The graph of the step if its replays match eager, or None; and how they match or differ.

        If it takes numbers in tensors, its replays have to match a step that takes floats, too.
        """
        session, changing, results = studied.session, self._changing, self._results
        self._pool = self._pool or Pool()
        outcome, made = prove_whole_step(session, ran=studied.ran, pool=self._pool)
        found = outcome.verification
        if made is not None and takes_numbers:

            def with_floats(*args: Any, **kwargs: Any) -> object:
                args, kwargs = changing.with_floats(args, kwargs)
                with results.with_floats():
                    return session.target.step(*args, **kwargs)

            found = verify_whole_step(
                replace(session.target, step=with_floats),
                made,
                session.batches_for_proof(),
                exact=False,
                now=session.start,
                meeting=session.device.meeting,
                recapture=functools.partial(capture_from_start, session, is_warm=False),
            )
            if found.status != "verified":
                made.release()
                made = None
        return made, found.reason if found is not None else outcome.reason

    def _stranger_to_python(self) -> str:
        """Which code, but for the step's own function, may read the numbers that the step changes."""
        python, seen = self._python, self._code_seen
        if python is None or not python.names:
            return ""
        if not seen.is_complete:
            return "another profiler hides which code reads the numbers that the step changes"
        reader = seen.reader_of(python.names, without=python.code)
        return f"{reader}() may read {' or '.join(sorted(python.names))}" if reader else ""

    def _target(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        calls: LastCalls | None,
        mode: Callable[[], AbstractContextManager[Any]],
    ) -> Target:
        given = Inputs(_on_gpu(args), _on_gpu(kwargs))
        numbers, step = self._numbers, self._step
        python = self._python
        standing = python.read(*args, **kwargs) if python is not None else ()
        gradients, results = self._gradients.now(), self._results

        @functools.wraps(step)
        def with_tensors(*args: object, **kwargs: object) -> object:
            # All recorded calls begin with the gradients of this one: another call of a step that
            # accumulates them would be a different step.
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            stands = (
                python.standing(standing, args, kwargs) if python is not None else nullcontext()
            )
            with mode(), numbers.as_tensors(), stands, results.standing():
                result = step(*args, **kwargs)
                return detached((result, results.left()) if results else result)

        description = Description(
            with_tensors,
            inputs=given,
            state={
                **self._state,
                **roots_of(step),
                **self._written.among(given),
                NUMBERS: numbers.tensors,
                RESULTS: results.tensors,
            },
        )
        origin = Origin(self.name, "", "a call of the captured step")
        target = replace(build(description, origin, mode=None, close=lambda: None), is_warm=True)
        if calls is None:
            return target
        state = memory_of(named_tensors(target.roots).values())
        batches = [*calls.inputs, clone_inputs(given, kept=state)]
        return replace(target, fresh_inputs=in_turn(batches), variation=None)

    def _forget(self) -> None:
        self._known.clear()
        self._last = unknown
        for graph in self._graphs.values():
            self._served_before += graph.served
            graph.release()
        self._graphs.clear()


def _is_computed_number(studied: Studied) -> bool:
    """Whether the first finding is a float that the step computes, such as the decay of an average from its count.

    Floats that the program computes are in tensors by now.
    """
    first = next(iter(studied.diagnosis.findings), None)
    if first is None or first.rule != ScalarsDiffer.id:
        return False
    found = unexplained_scalars(studied.recording, in_optimizer=False)
    return any(type(change.after) is float for each in found for change in each.difference.changes)


def _requires_gradient(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _on_gpu(arguments: Any) -> Any:
    """Tensors of the CPU are copied into inputs on the GPU, so that the step's own `.to()` copies nothing."""

    def moved(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and not leaf.is_cuda and leaf.dim() > 0:
            return leaf.cuda()
        return leaf

    return map_leaves(moved, arguments)
