"""Observes all threads' CUDA calls for a short time with torch's profiler, also while the program uses one."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.autograd.profiler as torch_profiler

from graphdoctor.measure.watch.sampling import Seen

WINDOW_S = 0.02
_PROFILING = "it profiled itself"
_KEY = "profiler"
_NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
# Kineto writes two lines to stderr for each window, else. CUPTI stays: taken out beside threads that launch, it
# ended a program on an H200 (CUDA 13.0) with "unspecified launch failure".
_ENVIRONMENT = {
    "KINETO_LOG_LEVEL": "99",
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
}


def prepare_environment() -> None:
    """What kineto reads when it starts and at the end of each window."""
    os.environ.update(_ENVIRONMENT)


class Profiler:
    """Opens windows of CUDA activities only: no operator, no stack, no shape is recorded.

    A window is opened, closed and read in the thread that calls `look`, without torch.profiler's
    synchronization. CUPTI stays in the process after the first: each launch and replay goes through it.
    """

    def __init__(self, gate: Gate, window_s: float = WINDOW_S) -> None:
        self._gate = gate
        self._window_s = window_s
        self._calls: dict[str, Callable[..., Any]] = {}
        self._config: Any = None
        self._activities: Any = None
        self._starting = threading.Lock()
        self._is_ready = False
        self.setup_s = 0.0
        self.reason = ""  # why it cannot look

    def on(self) -> AbstractContextManager[None]:
        """Notice, while the block runs, when the program uses the profiler itself."""
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
        return replaced(torch_profiler, ours)

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
                    self._open()
                    self._calls["_disable_profiler"]()
                    self._is_ready = True
        except Exception as error:  # whatever CUPTI has against it: the program goes on
            self.reason = f"torch's profiler does not start here: {error}"

    def look(self) -> tuple[list[Seen], float] | None:
        """The events of one window and its length in seconds; None where the program is in the way."""
        with self._gate.window() as is_free:
            if not is_free:
                return None
            self._open()
            begun = time.perf_counter()  # while it opens, nothing is recorded yet
            try:
                self._gate.wait(self._window_s)
            finally:
                seen_s = time.perf_counter() - begun
                found = self._calls["_disable_profiler"]()
        cpu = torch._C._autograd.DeviceType.CPU
        events = [
            Seen(each.name(), each.device_type() != cpu, each.correlation_id())
            for each in found.events()
        ]
        return events, seen_s

    def _open(self) -> None:
        self._calls["_prepare_profiler"](self._config, self._activities)
        self._calls["_enable_profiler"](self._config, self._activities)


class Gate:
    """Either the program holds it, as often as it likes, or one window is open.

    Who holds it while a window is open waits until that is closed, which happens at once.
    """

    def __init__(self) -> None:
        self._window = threading.Lock()
        self._count = threading.Lock()
        self._holders: dict[object, str] = {}
        self._asked = threading.Event()

    @property
    def held_for(self) -> str:
        """What the program does that no window may see; "" where it does nothing of the kind."""
        return next(iter(list(self._holders.values())), "")

    def hold(self, key: object, doing: str) -> None:
        """Close the open window, and let no other open."""
        with self._count:
            self._holders[key] = doing
        self._asked.set()
        with self._window:
            pass

    def release(self, key: object) -> None:
        """Windows may open again, as far as this holder is concerned."""
        with self._count:
            self._holders.pop(key, None)

    @contextmanager
    def window(self) -> Iterator[bool]:
        """Whether a window may open now; it is open for the block."""
        with self._window:
            self._asked.clear()
            yield not self._holders

    def wait(self, seconds: float) -> None:
        """In an open window: until that time is over, or the program wants the gate."""
        self._asked.wait(seconds)


def around(method: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement of a method, which gets the method as its first argument."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(method, *args, **kwargs)

    return call


@contextmanager
def replaced(owner: Any, ours: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """In the block, these stand in the place of the owner's."""
    was = {name: vars(owner).get(name) for name in ours}
    for name, method in ours.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, method in ours.items():
            if vars(owner).get(name) is not method:
                continue  # the program has put its own over it, which calls ours
            if was[name] is None:
                delattr(owner, name)
            else:
                setattr(owner, name, was[name])
