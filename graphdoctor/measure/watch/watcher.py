"""A thread beside the program: it looks now and then, tells at times, and reports when it is asked."""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import ref

import torch

import graphdoctor
from graphdoctor.device.processes.launched import rank_and_count
from graphdoctor.measure.watch.compiled import CompileCounts, Growing, ModelCounts
from graphdoctor.measure.watch.profiler import Gate, Profiler, around, prepare_environment, replaced
from graphdoctor.measure.watch.sampling import DutyCycle, Windows
from graphdoctor.target.frames import locate
from graphdoctor.target.program.launch import Program, run_program
from graphdoctor.values.locations import Location
from graphdoctor.values.watched import (
    WATCH_SCHEMA_VERSION,
    Device,
    State,
    WatchCost,
    WatchedAllocator,
    WatchedGraphs,
    WatchReport,
)


class SharedSignals:
    """Calls ours, then the program's handler, which it may set and ask for as ever.

    `listeners`: what to call, by the signal's number. Where the program has no handler, a signal
    whose default ends the process (`ends`) ends it as if nobody had listened.
    """

    def __init__(
        self, listeners: dict[int, Callable[[], None]], ends: frozenset[int] = frozenset()
    ) -> None:
        self._listeners = listeners
        self._ends = ends
        self._theirs: dict[int, Any] = {}
        self._set, self._get = signal.signal, signal.getsignal
        self._is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Listen while the block runs; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in self._listeners:
            theirs = self._get(number)
            if theirs is not None:  # else a handler that is not Python's has it
                self._theirs[number] = theirs
                self._set(number, self._arrived)
        signal.signal, signal.getsignal = self._signal, self._getsignal  # type: ignore[assignment]
        self._is_on = True
        try:
            yield
        finally:
            self.off()

    def off(self) -> None:
        """Give the signals back; also in a child of a fork."""
        if not self._is_on:
            return
        self._is_on = False
        signal.signal, signal.getsignal = self._set, self._get
        for number, theirs in self._theirs.items():
            if self._get(number) == self._arrived:
                self._set(number, theirs)

    def _signal(self, number: int, handler: Any) -> Any:
        """In the place of signal.signal."""
        if not self._is_on or number not in self._theirs:
            return self._set(number, handler)
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            return self._set(number, handler)  # which says what is wrong with it
        if threading.current_thread() is not threading.main_thread():
            return self._set(number, handler)  # which says that this thread may not
        before, self._theirs[number] = self._theirs[number], handler
        self._set(number, self._arrived)
        return before

    def _getsignal(self, number: int) -> Any:
        """In the place of signal.getsignal."""
        return self._theirs[number] if self._is_on and number in self._theirs else self._get(number)

    def _arrived(self, number: int, frame: Any) -> None:
        theirs = self._theirs[number]
        ends = number in self._ends
        if not ends or theirs == signal.SIG_DFL:
            self._listeners[number]()
        if callable(theirs):
            theirs(number, frame)
        elif ends and theirs == signal.SIG_DFL:
            self._set(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_CAPTURING = "it captured a CUDA graph"
_FEW = 2  # replays of a line's graphs after which another capture there is one again


@dataclass(slots=True)
class _Line:
    """The graphs that one line captured. `replays += 1` needs no lock: no other thread runs within it."""

    location: Location | None
    captures: int = 0
    again: int = 0
    replays: int = 0
    last_capture_s: float = 0.0
    alive: dict[int, Any] = field(default_factory=dict)


class GraphCounts:
    """Counts calls of a graph type's methods while `on`. Windows stay closed during captures."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._start_s = time.perf_counter()
        self._lines: dict[Location | None, _Line] = {}
        self._of: dict[int, _Line] = {}  # by the identity of a graph
        self.before_first: Callable[[], None] = lambda: None

    def read(self) -> tuple[WatchedGraphs, ...]:
        """The lines, those first whose graphs are replayed most."""
        lines = sorted(list(self._lines.values()), key=lambda line: (-line.replays, -line.captures))
        return tuple(
            WatchedGraphs(
                each.location, each.captures, each.again, len(each.alive), each.replays,
                each.last_capture_s,
            )
            for each in lines
        )  # fmt: skip

    def on(self, graph_type: Any) -> AbstractContextManager[None]:
        """Count while the block runs."""
        return replaced(
            graph_type,
            {
                "capture_begin": around(graph_type.capture_begin, self._capture_begin),
                "capture_end": around(graph_type.capture_end, self._capture_end),
                "replay": self._replays(graph_type.replay),
            },
        )

    # In place of the graph's methods, which they call.

    def _capture_begin(
        self, method: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._lines:
            self.before_first()
        self._gate.hold(id(graph), _CAPTURING)
        try:
            begun = method(graph, *args, **kwargs)
        except BaseException:
            self._gate.release(id(graph))
            raise
        self._note(graph, locate().location)
        return begun

    def _capture_end(
        self, method: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return method(graph, *args, **kwargs)
        finally:
            self._gate.release(id(graph))

    def _replays(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """In place of `replay`: one function, because each call costs a replay time."""
        of = self._of

        @functools.wraps(method)
        def replay(graph: Any) -> Any:
            line = of.get(id(graph))
            if line is None:
                line = self._note(graph, None, is_capture=False)
            line.replays += 1
            return method(graph)

        return replay

    def _note(self, graph: Any, location: Location | None, *, is_capture: bool = True) -> _Line:
        line = self._lines.setdefault(location, _Line(location))
        key = id(graph)
        before = self._of.get(key)
        if is_capture:
            line.captures += 1
            line.again += line.replays >= _FEW
            line.last_capture_s = time.perf_counter() - self._start_s
        if before is not None and before is not line:
            before.alive.pop(key, None)
        self._of[key] = line
        line.alive[key] = ref(graph, functools.partial(self._forget, key))
        return line

    def _forget(self, key: int, dead: object) -> None:
        line = self._of.get(key)
        if line is not None and line.alive.get(key) is dead:
            del line.alive[key], self._of[key]


_STATS = ("allocation.all.allocated", "num_device_alloc", "num_alloc_retries")


class AllocatorCounts:
    """Reads what CUDA's caching allocator counts anyway; the program may set it back to 0."""

    def __init__(self) -> None:
        self._sums = {name: Growing() for name in _STATS}  # each by device

    def read(self) -> WatchedAllocator | None:
        """None where another allocator is in its place: a pluggable one refuses, cudaMallocAsync's says 0."""
        if torch.cuda.is_initialized():
            if torch.cuda.get_allocator_backend() != "native":
                return None
            stats = [torch.cuda.memory_stats(number) for number in range(torch.cuda.device_count())]
            for name, sums in self._sums.items():
                sums.read({number: each.get(name, 0) for number, each in enumerate(stats)})
        return WatchedAllocator(*(sums.sums.total() for sums in self._sums.values()))


class WaitCounts:
    """Counts calls that wait for the device and are Python's, while `on`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def on(self) -> Iterator[None]:
        cuda = torch.cuda
        with ExitStack() as stack:
            for owner, path in (
                (cuda, "torch.cuda"), (cuda.Stream, "Stream"), (cuda.Event, "Event")
            ):  # fmt: skip
                ours = self._counting(owner.synchronize, f"{path}.synchronize()")
                stack.enter_context(replaced(owner, {"synchronize": ours}))
            yield

    def read(self) -> dict[str, int]:
        return dict(sorted(list(self.counts.items()), key=lambda item: -item[1]))

    def _counting(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        counts = self.counts

        @functools.wraps(method)
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return synchronize


Asked = Literal["report", "terminated", "stop", "started"]
Tell = Callable[
    [WatchReport, WatchReport | None], None
]  # the report now, and that of the last line
_RETRY_S = 1.0  # after a window that the program was in the way of
_FORKING = "fork"
_LAST_WORD_S = 5.0


class Watcher:
    """Counts while `on`, and samples through CUPTI where `with_cupti` says so.

    Everything but the counting is done by one thread of its own. `tell` is called every `every_s` with
    the report so far and that of the time before; `write` where a report was asked for.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        every_s: float,
        tell: Tell,
        write: Callable[[WatchReport], None],
        *,
        with_cupti: bool = False,
    ) -> None:
        self._with_cupti = with_cupti
        self._command, self._every_s, self._tell, self._write = command, every_s, tell, write
        self._gate = Gate()
        self._profiler = Profiler(self._gate)
        self.graphs = GraphCounts(self._gate)
        self.graphs.before_first = self._set_up
        self._waits, self._allocator = WaitCounts(), AllocatorCounts()
        self._compiled, self._models = CompileCounts(), ModelCounts()
        self._windows = Windows()
        self._duty: DutyCycle | None = None
        self._asked: queue.SimpleQueue[Asked] = queue.SimpleQueue()  # a signal handler may put
        self._put_off: dict[str, int] = {}  # windows, by what the program did then
        self._is_late = False
        self._forks = 0
        self._start_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="graphdoctor watch", daemon=True)
        self._is_on = False
        self._methods = ExitStack()  # ours in the place of torch's

    def ask(self, what: Asked) -> None:
        """Ask the thread for something; from any thread, and from a signal handler."""
        self._asked.put(what)

    def ask_and_wait(self, what: Asked, seconds: float) -> None:
        """The same, and wait until the thread has ended, but no longer than that."""
        self.ask(what)
        self._thread.join(seconds)

    @contextmanager
    def on(self) -> Iterator[None]:
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self.forget,
        )
        with self._methods as methods:
            if self._with_cupti:
                methods.enter_context(self._profiler.on())
            methods.enter_context(self.graphs.on(torch.cuda.CUDAGraph))
            methods.enter_context(self._waits.on())
            self._is_on = True
            self._thread.start()
            if self._with_cupti:
                torch.cuda._lazy_call(self._set_up)  # where the program starts CUDA, in its thread
            try:
                yield
            finally:
                if self._is_on:  # not in a child that the program forked
                    self._is_on = False
                    self.ask_and_wait("stop", 60.0)

    def forget(self) -> None:
        """In a child of a fork: nobody watches here."""
        if self._is_on:
            self._is_on = False
            self._methods.close()

    def report(self, state: State = "running", exit_code: int | None = None) -> WatchReport:
        """What was seen so far."""
        wall_s = time.perf_counter() - self._start_s
        spent_s = self._duty.spent_s if self._duty is not None else 0.0
        return WatchReport(
            schema_version=WATCH_SCHEMA_VERSION,
            tool_version=graphdoctor.__version__,
            command=self._command,
            rank=rank(),
            state=state,
            exit_code=exit_code,
            wall_s=wall_s,
            device=device(),
            allocator=self._allocator.read(),
            waits=self._waits.read(),
            calls=self._windows.read(),
            graphs=self.graphs.read(),
            models=self._models.read(),
            compiled=self._compiled.read(),
            cost=WatchCost(self._profiler.setup_s, spent_s, spent_s / wall_s if wall_s else 0.0),
            notes=tuple(self._notes()),
        )

    def _run(self) -> None:
        last: WatchReport | None = None
        line_s = time.perf_counter() + self._every_s
        while True:
            try:
                due_s = line_s
                if self._duty is not None and not self._profiler.reason:
                    due_s = min(due_s, self._duty.due_s)
                asked: Asked | None = self._asked.get(timeout=max(0.0, due_s - time.perf_counter()))
            except queue.Empty:
                asked = None
            if asked == "stop":
                return
            if asked == "terminated":
                self._write(self.report("terminated"))
                return
            if asked == "report":
                self._write(self.report())
            self._look()
            if time.perf_counter() >= line_s:
                now = self.report()
                self._tell(now, last)
                last, line_s = now, time.perf_counter() + self._every_s

    def _set_up(self) -> None:
        if not self._is_on or not self._with_cupti or self._duty is not None:
            return
        if not self._profiler.set_up():
            return
        self._duty = DutyCycle(time.perf_counter())
        self.ask("started")

    def _look(self) -> None:
        """A window, if one is due."""
        begun = time.perf_counter()
        duty = self._duty
        if duty is None or self._profiler.reason or begun < duty.due_s:
            return
        try:
            seen = self._profiler.look()
        except Exception as error:  # the program goes on without being looked at
            self._profiler.reason = f"torch's profiler failed: {error}"
            return
        now_s = time.perf_counter()
        if seen is None:
            if not self._is_late:
                doing = self._gate.held_for or "it was busy"
                self._put_off[doing] = self._put_off.get(doing, 0) + 1
            self._is_late = True
            duty.due_s = time.perf_counter() + _RETRY_S
            return
        self._is_late = False
        self._windows.add(*seen)
        del seen
        duty.pay(now_s, now_s - begun)

    def _notes(self) -> Iterator[str]:
        if self._profiler.reason:
            yield f"Launches, syncs and copies are not known. {self._profiler.reason}"
        for doing, count in self._put_off.items():
            yield f"Windows that were put off, since {doing} then: {count}."
        calls = self._windows.read()
        if calls.windows:
            yield (
                "CUDA's profiling interface stays in the process after the first window, and each launch and"
                " replay goes through it (--cupti)."
            )
        if calls.lacks_work:
            yield (
                "Windows saw launches and none of the GPU work that they started, which happens while other"
                " processes keep the GPU busy: copies, and the share of graphs, are not known."
            )
        elif calls.windows and calls.operations == 0 and not calls.syncs:
            yield (
                "No window saw any CUDA call: the GPU was not used then, or another profiler,"
                " such as Nsight, holds the interface that torch's needs."
            )
        if self._forks:
            yield f"Processes that the program forked ({self._forks}) are not watched."

    def _before_fork(self) -> None:
        if self._is_on:
            self._gate.hold((_FORKING, threading.get_ident()), "it forked")

    def _after_fork(self) -> None:
        if self._is_on:
            self._forks += 1
            self._gate.release((_FORKING, threading.get_ident()))


def rank() -> int | None:
    """The process's rank where torchrun, or what sets the same variables, started several."""
    number, count = rank_and_count()
    return number if count > 1 else None


def device() -> Device:
    """Whether the program uses CUDA, asked in a way that does not start CUDA."""
    if torch.cuda.is_initialized():
        return "watched"
    return "not used" if _has_cuda() else "none"


def _has_cuda() -> bool:
    """NVML's count, which leaves the process able to fork; without NVML there is no driver."""
    if not hasattr(torch._C, "_cuda_getDeviceCount"):
        return False
    count: Any = getattr(torch.cuda, "_device_count_nvml", None)
    return count is None or count() != 0


def watch_program(
    program: Program,
    every_s: float,
    tell: Tell,
    write: Callable[[WatchReport], None],
    *,
    with_cupti: bool = False,
) -> tuple[WatchReport, str]:
    """Run it to its end. `write` gets a report on SIGUSR1, and before SIGTERM ends the program.

    Raises UsageError where there is no such program. In a child that the program forked it returns
    as the program does, and the report is nobody's.
    """
    if with_cupti:
        prepare_environment()
    watcher = Watcher(program.command, every_s, tell, write, with_cupti=with_cupti)
    signals = SharedSignals(
        {
            signal.SIGUSR1: lambda: watcher.ask("report"),
            signal.SIGTERM: lambda: watcher.ask_and_wait("terminated", _LAST_WORD_S),
        },
        ends=frozenset({signal.SIGTERM}),
    )
    os.register_at_fork(after_in_child=signals.off)
    with signals.on(), watcher.on():
        ended = run_program(program, lambda: False)
    return watcher.report(ended.ending, ended.exit_code), ended.text
