"""Watch a running program, learn its steps, and diagnose each of them before the program continues."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler

from graphdoctor.target.frames import is_machinery
from graphdoctor.target.program.events import (
    At,
    Event,
    listening,
    location_of,
    make_event,
    places,
    without_frames,
)
from graphdoctor.target.program.launch import ThreadEnding, unseen
from graphdoctor.target.program.loop_step import LoopStep
from graphdoctor.target.program.loops import Loop, learn
from graphdoctor.target.program.rebuild import NotRebuilt, variables_of
from graphdoctor.target.program.statements import Span, block_of_with, whole_function
from graphdoctor.target.program.step import CallStep, SeenStep, may_be_trained
from graphdoctor.target.program.studies import Diagnose, Observe, Studies
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.locations import Location
from graphdoctor.values.options import Bounds

_MOST_NODES = 200_000
_MOST_EVENTS = 20_000  # older ones say nothing about a step
_MOST_NUMBERS = 1_000_000


class LoneBackward(NamedTuple):
    """A line whose backward passes no optimizer followed. `inside`: the class of the one whose step ran them."""

    line: Location
    times: int
    inside: str = ""


@dataclass
class Learner:
    """Listens to one thread. `cannot` says why its training steps have no statements, "" where they may have."""

    cannot: str = ""
    backwards: Counter[Location] = field(default_factory=Counter)  # since an optimizer stepped
    _events: list[Event] = field(default_factory=list)
    _numbers: set[int] = field(default_factory=set)  # of nodes that a backward pass reached
    stepping: str = ""  # the class of the optimizer that steps now
    closures: dict[Location, str] = field(default_factory=dict)  # its class, by backward pass
    acting: Counter[tuple[int, int]] = field(default_factory=Counter)  # unused, by id of code, line

    def acts_at(self, places: Sequence[At]) -> bool:
        """Whether forward passes from this line were used by no backward pass: an agent acts there."""
        return bool(places) and (id(places[0].code), places[0].line) in self.acting

    def note(self, event: Event) -> Loop | None:
        """The training step, once enough of them were seen."""
        if event.kind == "backward":
            if event.places:
                line = location_of(event.places[0])
                self.backwards[line] += 1
                if self.stepping:
                    self.closures[line] = self.stepping
            if len(self._numbers) < _MOST_NUMBERS:
                self._numbers |= numbers_of_graph(event.subject)
        elif event.kind == "step":
            self.backwards.clear()
            self.closures.clear()
            self.stepping = type(event.subject).__name__
        self._events.append(without_frames(event))
        del self._events[:-_MOST_EVENTS]
        loop = None
        if event.kind == "step":
            try:
                knows_all = len(self._numbers) < _MOST_NUMBERS
                events = used(self._events, self._numbers) if knows_all else self._events
                loop = learn(events)
                used_lines = {*_calls(events)}
                unused = (line for line in _calls(self._events) if line not in used_lines)
                self.acting = Counter(unused)
            except NotRebuilt as reason:
                self.cannot = str(reason)
        if loop is not None or self.cannot:
            self._events.clear()
            self._numbers.clear()
        return loop


@dataclass
class Thread:
    """What one thread has done so far."""

    learner: Learner = field(default_factory=Learner)
    loop: LoopStep | None = None
    passes: int = 0  # of the loop, since its optimizer stepped
    unused_forwards: int = 0  # forward passes with gradients that nothing followed
    marked: LoopStep | None = None  # the step that runs, where the program marks its steps


def numbers_of_graph(tensors: object) -> set[int]:
    """The numbers of autograd's nodes on which these hang: a tensor, or several."""
    several: tuple[Any, ...] = tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)
    waiting = [each.grad_fn for each in several if _is_tensor(each)]
    seen: set[object] = set()
    numbers: set[int] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        numbers.add(node._sequence_nr())
        waiting += [earlier for earlier, _ in node.next_functions]
    return numbers


def used(events: Sequence[Event], numbers: set[int]) -> list[Event]:
    """Without forward passes of which autograd made nodes that no backward pass has reached.

    An agent that acts makes such ones.
    """
    reached = sorted(numbers)

    def is_used(event: Event, following: Event) -> bool:
        if event.kind != "forward" or following.number <= event.number:
            return True
        first = bisect_left(reached, event.number)
        return first < len(reached) and reached[first] < following.number

    return [event for event, following in pairwise(events) if is_used(event, following)] + [
        *events[-1:]
    ]


def _calls(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """The lines that call modules, by the identity of their code."""
    for event in events:
        if event.kind == "forward" and event.places:
            yield id(event.places[0].code), event.places[0].line


def _short_batch(batches: object) -> tuple[int, int] | None:
    """How many samples the last batch of a DataLoader has, and the others; None where all have as many."""
    sampler = getattr(batches, "_index_sampler", None)
    if not isinstance(sampler, BatchSampler) or sampler.drop_last:
        return None
    try:
        count = len(sampler.sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
    left = count % sampler.batch_size
    return (left, sampler.batch_size) if left and count > sampler.batch_size else None


def _is_tensor(value: object) -> bool:
    with torch._C.DisableTorchFunction():
        return isinstance(value, torch.Tensor)


class StepsOfCode:
    """The steps that were asked for, each made once: into `steps`, or its reason into `reasons`."""

    def __init__(self, steps: list[LoopStep], reasons: list[str]) -> None:
        self._steps, self._reasons = steps, reasons
        self._known: dict[int, LoopStep | None] = {}  # by the identity of its code, which is kept
        self._kinds: dict[tuple[int, tuple[bool, ...]], LoopStep] = {}
        # By code and `self`, which is held to keep its id in use.
        self._modules: dict[tuple[int, int], tuple[object, list[torch.nn.Module]]] = {}

    def call(self, frame: FrameType) -> LoopStep | None:
        """The step of a function that is called. Calls under train() and under eval() are two."""
        code = frame.f_code
        first = self.step(code, whole_function(code))
        # Flags that the function sets itself say nothing about a call that begins.
        if first is None or {"train", "eval"} & {*code.co_names}:
            return first
        flags = self._flags(first, frame)
        if not self._kinds_of(code):
            self._kinds[id(code), flags] = first
        if (id(code), flags) not in self._kinds:
            (_, other), *_ = self._kinds_of(code)
            kind = LoopStep.of(first.loop, "inference")
            own, others = "train()", "eval()"
            if sum(flags) < sum(other):
                own, others = others, own
            if len(self._kinds_of(code)) == 1:
                first.name += f" under {others}"
            kind.name += f" under {own}"
            self._kinds[id(code), flags] = kind
            self._steps.append(kind)
        return self._kinds[id(code), flags]

    def _kinds_of(self, code: CodeType) -> list[tuple[int, tuple[bool, ...]]]:
        return [kind for kind in self._kinds if kind[0] == id(code)]

    def _flags(self, step: LoopStep, frame: FrameType) -> tuple[bool, ...]:
        """Which of the modules that the function reaches are in training mode."""
        holder = frame.f_locals.get("self")
        key = id(frame.f_code), id(holder)
        if key not in self._modules:
            reached = (value for _, value, _ in Walk(step.values(frame)))
            modules = [each for each in reached if isinstance(each, torch.nn.Module)]
            self._modules[key] = holder, modules
        return tuple(each.training for each in self._modules[key][1])

    def step(self, code: CodeType, span: Span | None) -> LoopStep | None:
        """The step of a code object; None where it cannot be run by itself, which is noted once."""
        if id(code) in self._known:
            return self._known[id(code)]
        step = None
        try:
            if span is None:
                raise NotRebuilt(f"The source of {code.co_filename} cannot be read.")
            step = LoopStep.of(Loop(span, variables_of(span), None), "inference")
            self._steps.append(step)
        except NotRebuilt as reason:
            self._reasons.append(str(reason))
        self._known[id(code)] = step
        return step


def is_function(code: CodeType, name: str) -> bool:
    """Whether it is the code of the function `name`, or of one that ends with it and is not torch's.

    A bare name is a function of the user's own files.
    """
    if code.co_name != name.rpartition(".")[2]:  # nearly all are told by this
        return False
    if code.co_qualname != name and not code.co_qualname.endswith(f".{name}"):
        return False
    if is_machinery(code.co_filename):
        return False
    return "." in name or is_user_file(code.co_filename)


def _key(module: torch.nn.Module, at: At) -> tuple[int, int, int]:
    """What calls of one step have in common."""
    return id(module), id(at.code), at.line


_PATIENCE = 4  # forward passes with gradients and no backward pass: they are no training ...
_WITH_OPTIMIZER = 2_000  # ... but where there is an optimizer they may be an episode of it
_UNTIL_ACTING = 50  # training steps after which a program that acted before it trained acts again


class Watch:
    """Listens to a program and finds its steps. `diagnose` is called inside the program, between two."""

    def __init__(self, diagnose: Diagnose, bounds: Bounds, observe: Observe) -> None:
        self._studies = Studies(diagnose, bounds, observe)
        self._bounds = bounds
        self._threads: dict[int, Thread] = {}
        self._calls: dict[tuple[int, int, int], CallStep] = {}
        # Seconds of each forward pass with gradients before the training step is learned, which shows who acts.
        self._early: dict[tuple[int, int, int], list[float]] = {}
        self._loops: list[LoopStep] = []
        self._compiled: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._is_off = False
        self.loading_s = 0.0
        self.short_batches: dict[tuple[int, int], None] = {}  # samples of the last one, of others
        self._patience = _PATIENCE
        self.first_s: float | None = None  # when the first event came
        self.reasons: list[str] = []
        self._of_code = StepsOfCode(self._loops, self.reasons)
        self.has_ended = False
        self._ending = ThreadEnding()

    @property
    def diagnosis_s(self) -> float:
        """The time that graphdoctor took, in the program's."""
        return self._studies.wall_s

    @property
    def steps(self) -> list[SeenStep]:
        """The kinds of step that repeated, those that took longest first."""
        found: list[SeenStep] = [*self._loops, *(c for c in self._calls.values() if c.begun > 1)]
        return sorted(found, key=lambda step: -step.wall_s)

    @property
    def after(self) -> int:
        """How many of a kind pass before one is saved."""
        return self._bounds.after

    @property
    def only(self) -> str:
        """The function whose calls are the steps, "" where steps are found."""
        return self._bounds.only

    @property
    def lone_backwards(self) -> list[LoneBackward]:
        """The lines of backward passes that no optimizer stepped after, and how often each ran."""
        learners = [thread.learner for thread in self._threads.values()]
        alone = sum((each.backwards for each in learners), start=Counter[Location]())
        inside = {line: name for each in learners for line, name in each.closures.items()}
        counts = alone.most_common()
        return [LoneBackward(line, n, inside.get(line, "")) for line, n in counts if n > 1]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Listen while the block runs."""
        os.register_at_fork(after_in_child=self._switch_off)
        with listening(self), unseen():
            if self._bounds.only:
                threading.setprofile(self._called)
                sys.setprofile(self._called)
            try:
                yield
            finally:
                self._is_off = True
                self._studies.close_gap()
                if self._bounds.only:
                    threading.setprofile(None)
                    sys.setprofile(None)
                for step in self._loops:
                    step.taken.stop()

    @property
    def _is_deaf(self) -> bool:
        return self._is_off or self._studies.is_busy

    def _switch_off(self) -> None:
        self._is_off = True

    def finish(self) -> None:
        """Diagnose what was saved of steps that ended before there was enough of them."""
        for step in self.steps:
            self._studies.finish(step)

    def event(self, event: Event) -> None:
        """One event of the program."""
        if self._is_deaf or self.has_ended:
            return self._end_again()
        if event.kind == "made":
            self._patience = _WITH_OPTIMIZER
            return
        if event.kind == "compiled":
            if isinstance(event.subject, torch.nn.Module):
                self._compiled.add(event.subject)
            return
        self._note_start()
        thread = self._thread
        if (marked := thread.marked) is not None:
            if event.kind == "step":
                marked.mode = "training"
            self._note_call(marked, event)
            if self._bounds.only:  # not as soon as it is called: a profile function sees no other
                self._enter(marked, lambda: None)
        elif self._bounds.only:
            for step in filter(self._studies.has_enough, self._loops):
                self._enter(step, lambda: None)  # nothing was heard while it ran
        elif thread.loop is not None:
            self._follow(thread, thread.loop, event)
        elif event.kind == "stepped":
            thread.learner.stepping = ""
        elif not thread.learner.cannot:
            self._learn(thread, event)

    def call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]
    ) -> Any:  # fmt: skip
        """A module is called from outside any other."""
        if self._is_deaf or self.has_ended:
            self._end_again()
            return run()
        self._note_start()
        where = places(3)
        thread = self._thread
        if self._bounds.only or thread.marked is not None:
            self.event(make_event("forward", module, where))
            return run()
        if (
            torch.is_grad_enabled()
            and may_be_trained(module)
            and not (thread.loop is not None and thread.learner.acts_at(where))
            and thread.unused_forwards < self._patience
        ):
            thread.unused_forwards += 1
            self.event(make_event("forward", module, where))
            if thread.loop is not None or not where:
                return run()
            begun = time.perf_counter()
            try:
                return run()
            finally:
                self._early.setdefault(_key(module, where[0]), []).append(
                    time.perf_counter() - begun
                )
        in_loop = thread.loop is not None and thread.loop.follower.holds(where)
        if in_loop or not where or not any(True for _ in module.parameters()):
            return run()
        key = _key(module, where[0])
        if key not in self._calls:
            self._calls[key] = CallStep.of(module, location_of(where[0]), self._early.pop(key, ()))
        step = self._calls[key]
        step.note_call(module, where, is_compiled=module in self._compiled)
        step.begins(self._studies.now_s)
        self._enter(step, lambda: step.begin(args, kwargs))
        begun = time.perf_counter()
        try:
            return run()
        finally:
            step.wall_s += time.perf_counter() - begun
            self._studies.leave(step)

    def loaded(self, batches: object, wall_s: float) -> None:
        """A DataLoader gave a batch."""
        if self._is_deaf:
            return
        if (sizes := _short_batch(batches)) is not None:
            self.short_batches.setdefault(sizes)
        if self.first_s is not None:
            self.loading_s += wall_s

    def mark(self, frame: FrameType) -> None:
        """The program says that a step begins: the body of the `with` statement in this frame."""
        if self._is_deaf or self.has_ended:
            return self._end_again()
        self._note_start()
        span = block_of_with(frame.f_code, frame.f_lineno)
        step = self._of_code.step(frame.f_code, span) if span is not None else None
        if step is None:
            return
        self._thread.marked = step
        step.begins(self._studies.now_s)
        step.entered_at = time.perf_counter()
        self._begin(step, frame)

    def unmark(self) -> None:
        """The marked step has ended."""
        step, self._thread.marked = self._thread.marked, None
        if step is not None and step.entered_at is not None:
            step.wall_s += time.perf_counter() - step.entered_at
            self._studies.leave(step)

    def _called(self, frame: FrameType, event: str, arg: object) -> None:
        """Python calls or leaves a function: the one whose calls are the steps, perhaps."""
        code = frame.f_code
        if self._is_deaf or not is_function(code, self._bounds.only):
            return
        if event == "return":
            self.unmark()
        elif event == "call":
            step = self._of_code.call(frame)
            if step is None:
                return
            self._studies.close_gap()
            self._note_start()
            step.begins(self._studies.now_s)
            self._thread.marked = step
            self._look(step, frame)
            self._studies.keep(step, lambda: step.begin(frame), None)
            step.entered_at = time.perf_counter()

    @property
    def _thread(self) -> Thread:
        return self._threads.setdefault(threading.get_ident(), Thread())

    def _note_start(self) -> None:
        if self.first_s is None:
            self.first_s = time.perf_counter()

    def _learn(self, thread: Thread, event: Event) -> None:
        if event.kind == "backward":
            thread.unused_forwards = 0
        loop = thread.learner.note(event)
        if thread.learner.cannot:
            self.reasons.append(thread.learner.cannot)
        if loop is not None:
            thread.loop = LoopStep.learned(loop)
            self._loops.append(thread.loop)
            # What was called inside the training step was no step of its own.
            self._calls = {key: call for key, call in self._calls.items() if call.is_done}

    def _follow(self, thread: Thread, step: LoopStep, event: Event) -> None:
        now = time.perf_counter()
        if event.kind == "backward":
            thread.unused_forwards = 0
        if event.kind == "stepped":
            step.follower.has_stepped()
            self._studies.leave(step)
            if step.entered_at is not None:
                step.wall_s += now - step.entered_at
                step.entered_at = None
            if thread.passes:
                step.passes_per_step, step.knows_passes = thread.passes, True
            thread.passes = 0
            return
        if step.follower.holds(event.places):
            self._note_call(step, event)
        at = step.follower.begins(event)
        if at is None:
            return
        is_first = thread.passes == 0
        thread.passes += 1
        if step.entered_at is None:
            step.entered_at = now
        if is_first:
            step.begins(self._studies.now_s)
        if is_first or step.saved is not None:
            assert at.frame is not None
            self._begin(step, at.frame, autocast=step.loop.is_autocast)

    def _note_call(self, step: SeenStep, event: Event) -> None:
        module = event.subject
        if event.kind == "forward" and isinstance(module, torch.nn.Module) and not step.is_done:
            step.note_call(module, event.places, is_compiled=module in self._compiled)

    def _begin(self, step: LoopStep, frame: FrameType, *, autocast: bool | None = None) -> None:
        """A step of statements begins in this frame."""
        self._look(step, frame)
        self._enter(step, lambda: step.begin(frame), autocast=autocast)

    def _look(self, step: LoopStep, frame: FrameType) -> None:
        """Note what is there when the last step begins before one is saved: a saved one holds things itself."""
        is_near = step.begun >= self._bounds.after and step.saved is None
        if is_near and not self._studies.is_due(step):
            step.look(frame)

    def _enter(
        self, step: SeenStep, keep: Callable[[], None], *, autocast: bool | None = None
    ) -> None:
        """A step begins. The program ends here once all its steps are diagnosed, if it is to."""
        self._studies.enter(step, keep, autocast)
        if self._bounds.ends and not self._waiting():
            self.has_ended = True
            self._end_again()

    def _waiting(self) -> bool:
        if self._patience == _WITH_OPTIMIZER and not self._loops and not self.reasons:
            return True  # it will train
        seen = {key[1:] for key, call in self._calls.items() if call.begun > 1}
        for thread in (*self._threads.values(),):
            acting = {line for line, count in thread.learner.acting.items() if count > 1}
            if thread.loop is not None and thread.loop.begun < _UNTIL_ACTING and acting - seen:
                return True
        settled = [step.is_done or bool(step.reason) for step in self.steps]
        return not settled or not all(settled)

    def _end_again(self) -> None:
        if self.has_ended and not self._is_deaf:
            self._ending.end()
