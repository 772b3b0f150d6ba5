"""A run of the step, watched on the host only -> the random draws and clock readings in it."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Any

from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.record.host.clocks import CLOCKS
from graphdoctor.record.host.lines import Watch, WatchedLines
from graphdoctor.record.host.outside import FILES_OF_QUERIES, QueryObserver
from graphdoctor.record.host.running import FILES_OF_QUEUES, TAKEN_FROM, Running
from graphdoctor.target.frames import Place, is_machinery, is_torch, locate_from
from graphdoctor.target.program.quiet import audited
from graphdoctor.values.host_events import (
    ClockRead,
    ItemTaken,
    OutsideQuery,
    PythonEvent,
    RandomDraw,
    WorkForThread,
)

_RANDOM_MODULE = random.__file__
THREADS = {
    threading.Thread.start.__code__: "threading.Thread",
    ThreadPoolExecutor.submit.__code__: "concurrent.futures.ThreadPoolExecutor",
}
_FILES = frozenset({_RANDOM_MODULE, *(code.co_filename for code in THREADS)}).union(
    FILES_OF_QUERIES, FILES_OF_QUEUES
)
_FUNCTIONS = frozenset({next, *CLOCKS})
_SUSPENDED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_OWNERS = (random.Random, *TAKEN_FROM)
_Found = tuple[type[PythonEvent], str]
_DRAW_NOTHING = frozenset({"getstate", "setstate", "seed"})


class HostObserver(Observer):
    """Watches calls of C functions by `sys.setprofile`; counts operators to place what it sees.

    It sees a draw however its function was imported. A draw counts when the user's own code asked
    for it: torch and Python's library draw for purposes that never reach a kernel.
    `watches` are what shows by its state alone, after each line: NumPy's generators, the step's Python state.
    `running` are the iterators that outlive the step.
    """

    def __init__(self, watches: Sequence[Watch] = (), running: Running | None = None) -> None:
        self._lines = WatchedLines(watches, self._add)
        self._running = running or Running({})
        self.events: list[PythonEvent] = []
        self._operators = 0
        self._last_next = Place(None, (), False)  # where an iterator moves that no call names
        self._before: Any = None
        self._queries = QueryObserver(
            lambda name, frame: self._add(OutsideQuery, name, locate_from(frame))
        )
        self._heard = audited(self._queries.audit)

    def after(self, call: Call) -> None:
        self._operators += 1

    def __enter__(self) -> HostObserver:
        self._before = sys.getprofile()
        self._lines.__enter__()
        self._heard.__enter__()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc_info: object) -> None:
        profile_by(self._before)
        self._heard.__exit__(None, None, None)
        self._lines.__exit__()
        seen = {event.name for event in self.events if isinstance(event, ItemTaken)}
        for path in self._running.moved():
            if path not in seen:
                self._add(ItemTaken, path, self._last_next)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            self._queries.built_in_called(arg, frame)
            if _may_tell(arg):
                self._built_in_called(arg, frame)
        elif event == "call" and frame.f_back is not None:
            # A step calls a hundred thousand functions, hardly any of them in these files.
            code = frame.f_code
            if (
                _is_looked_at(code.co_filename)
                or code.co_name == "__next__"
                or code.co_flags & _SUSPENDED
            ):
                self._queries.function_called(frame, frame.f_back)
                self._function_called(frame, frame.f_back)

    def _built_in_called(self, function: Any, caller: FrameType) -> None:
        if is_machinery(caller.f_code.co_filename):
            return
        found = _built_in(function)
        if found is not None:
            self._add(*found, locate_from(caller))
        elif (taken := self._running.taken_by_built_in(function)) is not None:
            self._add(ItemTaken, taken, locate_from(caller))
        elif function is next:
            self._last_next = locate_from(caller)

    def _function_called(self, frame: FrameType, caller: FrameType) -> None:
        code = frame.f_code
        if code in THREADS:
            if not _is_asked_by_torch(caller):
                self._add(WorkForThread, THREADS[code], locate_from(caller))
        elif (taken := self._running.taken_in_call(frame)) is not None:
            self._add(ItemTaken, taken, locate_from(caller))
        elif code.co_filename == _RANDOM_MODULE and not is_machinery(caller.f_code.co_filename):
            # Where it is called, and not where it draws: gauss() draws in every second call.
            found = _of_random(code.co_name)
            if found is not None:
                self._add(*found, locate_from(caller))

    def _add(self, kind: type[PythonEvent], name: str, place: Place) -> None:
        self.events.append(kind(name, self._operators, place.location, place.stack))


def profile_by(before: Any) -> None:
    """Put back what profiled. cProfile's hook is in C, which only the profiler itself can set."""
    if before is None or callable(before):
        sys.setprofile(before)
        return
    sys.setprofile(None)
    before.enable()


@cache
def _is_looked_at(file: str) -> bool:
    """Whether something may be found where functions of this file begin: the user's, and a few of Python's."""
    return not is_machinery(file) or file in _FILES


def _may_tell(function: Any) -> bool:
    """Whether a function in C draws, reads a clock or takes from an iterator; it needs no frame to know."""
    if isinstance(getattr(function, "__self__", None), _OWNERS):
        return True
    try:
        return function in _FUNCTIONS
    except TypeError:  # a callable that cannot be hashed
        return False


def _built_in(function: Any) -> _Found | None:
    """A C function that draws or reads a clock."""
    if isinstance(getattr(function, "__self__", None), random.Random):
        return _of_random(function.__name__)
    try:
        return (ClockRead, CLOCKS[function]) if function in CLOCKS else None
    except TypeError:  # a callable that cannot be hashed
        return None


def _of_random(name: str) -> _Found | None:
    """A function of Python's `random`."""
    draws = name not in _DRAW_NOTHING and not name.startswith(("_", "<"))
    return (RandomDraw, f"random.{name}()") if draws else None


def _is_asked_by_torch(frame: FrameType | None) -> bool:
    """Whether torch, and not the user's code, is behind a call of Python's library."""
    while frame is not None and is_machinery(frame.f_code.co_filename):
        if is_torch(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False
