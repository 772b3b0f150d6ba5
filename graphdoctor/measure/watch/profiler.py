"""torch's profiler -> a short look at all threads' CUDA calls, beside whatever profiler the program has."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as torch_profiler

from graphdoctor.measure.watch.gate import Gate
from graphdoctor.measure.watch.sampling import Seen

WINDOW_S = 0.02
_PROFILING = "it profiled itself"
_KEY = "profiler"
_NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
_QUIET = {"KINETO_LOG_LEVEL": "99"}  # else it writes two lines to stderr for each window
_LEAVES = {"TEARDOWN_CUPTI": "1"}  # else CUPTI stays in each launch
_KEEPS = "DISABLE_CUPTI_LAZY_REINIT"  # with any value, CUPTI is put back at once
_STAYS = {"TEARDOWN_CUPTI": "0", _KEEPS: "1"}
_OLDEST_CUDA = (12, 6)  # that lets CUPTI go and come back beside CUDA graphs (pytorch#150957)
_TASKS = Path("/proc/self/task")
_OWN_CALLS_S, _GONE_S = 0.05, 0.2
_SIGN = "cudaStreamSynchronize"  # of a stream of ours, where nothing runs


def prepare_environment() -> None:
    """What kineto reads when it starts and at the end of each window."""
    for name, value in {**_QUIET, **(_LEAVES if _can_leave() else _STAYS)}.items():
        os.environ.setdefault(name, value)


class Profiler:
    """Opens windows of CUDA activities only: no operator, no stack, no shape is recorded.

    A window is opened, closed and read in the thread that calls `look`, without torch.profiler's
    synchronization, and CUPTI leaves the process after it, unless `cupti_stays`. Its cost to the
    program is then at most the time that `look` takes.
    """

    def __init__(self, gate: Gate, window_s: float = WINDOW_S) -> None:
        self._gate = gate
        self._window_s = window_s
        self._calls: dict[str, Callable[..., Any]] = {}
        self._config: Any = None
        self._activities: Any = None
        self._starting = threading.Lock()
        self._is_ready = False
        self._stream: torch.cuda.Stream | None = None
        self.blind = 0  # windows in which CUPTI was not there
        self.setup_s = 0.0
        self.reason = ""  # why it cannot look

    @contextmanager
    def on(self) -> Iterator[None]:
        """Notice, while the block runs, when the program uses the profiler itself."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        self._calls = {name: getattr(torch_profiler, name) for name in _NAMES}

        def holds(name: str) -> Callable[..., Any]:
            def begin(*args: Any, **kwargs: Any) -> Any:
                self._gate.hold(_KEY, _PROFILING)
                return self._calls[name](*args, **kwargs)

            return begin

        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._calls["_disable_profiler"](*args, **kwargs)
            finally:
                self._gate.release(_KEY)

        ours = {
            "_prepare_profiler": holds("_prepare_profiler"),
            "_enable_profiler": holds("_enable_profiler"),
            "_disable_profiler": end,
        }
        for name, call in ours.items():
            setattr(torch_profiler, name, call)

    def stop(self) -> None:
        for name, call in self._calls.items():
            setattr(torch_profiler, name, call)

    def set_up(self) -> bool:
        """Start kineto and CUPTI by an empty window, once; whether there can be others.

        It has to come before the first capture (pytorch#75504), in the thread that imported torch
        (elsewhere kineto complains on stderr), and not before CUDA's own start: a process that has
        started CUDA cannot fork children that use it.
        """
        with self._starting:
            if not self._is_ready and not self.reason:
                begun = time.perf_counter()
                self._start_kineto()
                self.setup_s = time.perf_counter() - begun
        return self._is_ready

    def _start_kineto(self) -> None:
        if torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities():
            self.reason = "This torch cannot trace CUDA: it was built without CUPTI."
            return
        try:
            with self._gate.window() as is_free:
                if is_free:
                    made = torch_profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
                    self._config, self._activities = made.config(), made.kineto_activities
                    self._stream = torch.cuda.Stream() if torch.version.cuda else None
                    self._open()
                    self._close()
                    self._is_ready = True
        except Exception as error:  # whatever CUPTI has against it: the program goes on
            self.reason = f"torch's profiler does not start here: {error}"

    def look(self) -> tuple[list[Seen], float] | None:
        """The events of one window and its length in seconds.

        None where the program is in the way, or where CUPTI was not there until the end, which would
        look like a program that does nothing: a call of ours, made at the end, was not among the events.
        """
        with self._gate.window() as is_free:
            if not is_free:
                return None
            self._open()
            begun = time.perf_counter()  # while it opens, nothing is recorded yet
            try:
                self._gate.wait(self._window_s)
            finally:
                seen_s = time.perf_counter() - begun
                if self._stream is not None:
                    self._stream.synchronize()
                found = self._close()
        cpu = torch._C._autograd.DeviceType.CPU
        events = [
            Seen(each.name(), each.device_type() != cpu, each.correlation_id())
            for each in found.events()
        ]
        if self._stream is not None and not _without_sign(events):
            self.blind += 1
            return None
        return events, seen_s

    def _open(self) -> None:
        self._calls["_prepare_profiler"](self._config, self._activities)
        self._calls["_enable_profiler"](self._config, self._activities)

    def _close(self) -> Any:
        """What was seen; until CUPTI has left, which happens at the end of somebody's call of CUDA."""
        before = _threads()
        found = self._calls["_disable_profiler"]()
        leaving = _threads() - before
        begun = time.perf_counter()
        while leaving & _threads() and (waited_s := time.perf_counter() - begun) < _GONE_S:
            if waited_s > _OWN_CALLS_S and torch.cuda.is_initialized():
                torch.cuda.current_device()  # the program makes no calls now
            time.sleep(0.001)
        return found


def cupti_stays() -> str:
    """Why CUPTI stays in the process after a window, as a clause; "" where it leaves."""
    if not _can_leave():
        return f"CUDA {torch.version.cuda} cannot take it out beside CUDA graphs, as 12.6 and newer can"
    leaves = os.environ.get("TEARDOWN_CUPTI") == "1" and _KEEPS not in os.environ
    if leaves or torch.version.cuda is None:
        return ""
    return "TEARDOWN_CUPTI is not 1 in the environment, or DISABLE_CUPTI_LAZY_REINIT is set"


def _can_leave() -> bool:
    cuda = tuple(int(part) for part in (torch.version.cuda or "").split(".") if part.isdigit())
    return not cuda or cuda >= _OLDEST_CUDA


def _without_sign(events: list[Seen]) -> bool:
    """Take our own call out of the events; whether it was there."""
    for number in range(len(events) - 1, -1, -1):
        if events[number].name == _SIGN and not events[number].is_on_device:
            del events[number]
            return True
    return False


def _threads() -> set[str]:
    """The process's threads, those of C++ too; none where the system does not tell."""
    return set(os.listdir(_TASKS)) if _TASKS.is_dir() else set()
