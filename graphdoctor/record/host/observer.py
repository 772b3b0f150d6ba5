"""Watch a run of the step on the host: draws, clocks, items taken, queries outside, and state that changes."""

from __future__ import annotations

import datetime
import os
import pathlib
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from inspect import CO_GENERATOR
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Protocol

from graphdoctor.device.observe.interpreter import profiling
from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.record.host.running import FILES_OF_QUEUES, TAKEN_FROM, Running
from graphdoctor.target.frames import Place, is_machinery, is_own, is_torch, locate_from
from graphdoctor.target.program.quiet import audited
from graphdoctor.values.host_events import (
    ClockRead,
    ItemTaken,
    OutsideQuery,
    PythonEvent,
    RandomDraw,
    WorkForThread,
)

# Functions of Python's library that code calls for their result. Opened files and connections are
# seen by Python's audit hooks, whoever opens them.
_QUERIES: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("os", os, ("stat", "access")),
    ("os.path", os.path, ("exists", "isfile", "isdir", "getmtime", "getsize")),
    ("pathlib.Path", pathlib.Path, ("exists", "is_file", "is_dir", "stat", "iterdir")),
    ("socket", socket.socket, ("accept", "recv", "recv_into", "recvfrom")),
)
_QUERY_NAMES = {
    getattr(owner, name): f"{prefix}.{name}()"
    for prefix, owner, names in _QUERIES
    for name in names
    if hasattr(owner, name)
}
_BUILT_IN_QUERIES = {
    f.__name__: text for f, text in _QUERY_NAMES.items() if not isinstance(f, FunctionType)
}
_QUERY_FUNCTIONS = {
    f.__code__: text for f, text in _QUERY_NAMES.items() if isinstance(f, FunctionType)
}
_GETITEM = type(os.environ).__getitem__.__code__
FILES_OF_QUERIES = frozenset(code.co_filename for code in (_GETITEM, *_QUERY_FUNCTIONS))
_CONNECTED = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})
_OPENED = frozenset({"open", "os.listdir", "os.scandir", "subprocess.Popen", "os.posix_spawn"})
# Python's library reads files for itself: to import, to warn, to log, to show a line.
_FOR_ITSELF = (
    *(f"{os.sep}{n}.py" for n in ("linecache", "warnings", "traceback", "inspect", "tokenize")),
    *(f"{os.sep}{n}{os.sep}" for n in ("logging", "importlib", "zoneinfo")),
    "<frozen importlib",
)


class QueryObserver:
    """Reports each query that the user's code makes; its owner passes on what is about to be called."""

    def __init__(self, report: Callable[[str, FrameType], None]) -> None:
        self._report = report  # called with what is queried, and the user's frame

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """An event of Python's audit hooks."""
        if event in _CONNECTED:
            self._found(f"{event}()", sys._getframe(2))
        if event not in _OPENED:
            return
        path = args[0] if isinstance(args[0], (str, bytes)) else ""
        if event == "open" and (not path or path == os.devnull or not _is_read(args)):
            return
        name = f"{event.removeprefix('os.')} of {os.path.basename(os.fsdecode(path))!r}"
        self._found(name, sys._getframe(2))

    def built_in_called(self, function: Any, caller: FrameType) -> None:
        """A function in C is about to be called."""
        name = _BUILT_IN_QUERIES.get(getattr(function, "__name__", ""))
        if name is None or is_machinery(caller.f_code.co_filename):
            return
        is_socket = isinstance(getattr(function, "__self__", None), socket.socket)
        if is_socket or (isinstance(function, BuiltinFunctionType) and function in _QUERY_NAMES):
            self._found(name, caller)

    def function_called(self, frame: FrameType, caller: FrameType) -> None:
        """A function of Python's begins."""
        code = frame.f_code
        if code is _GETITEM:
            self._found(f"the environment variable {frame.f_locals.get('key')}", caller)
        elif not is_machinery(caller.f_code.co_filename) and code in _QUERY_FUNCTIONS:
            self._found(_QUERY_FUNCTIONS[code], caller)

    def _found(self, name: str, frame: FrameType) -> None:
        caller = calling_frame(frame)
        if caller is not None:
            self._report(name, caller)


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """The user's frame; None if torch, graphdoctor or Python's library calls for itself."""
    while frame is not None and is_machinery(file := frame.f_code.co_filename):
        is_load = file.endswith(f"torch{os.sep}serialization.py")
        if (is_torch(file) and not is_load) or is_own(file):
            return None
        if any(part in file for part in _FOR_ITSELF):
            return None
        frame = frame.f_back
    return frame


def _is_read(args: tuple[Any, ...]) -> bool:
    mode, flags = (*args, None, None)[1:3]
    if isinstance(mode, str):
        return "r" in mode or "+" in mode
    return isinstance(flags, int) and not flags & os.O_WRONLY


_SECONDS = (
    "time", "perf_counter", "monotonic", "process_time", "thread_time",
)  # fmt: skip
CLOCKS: dict[Any, str] = {
    getattr(time, f"{name}{unit}"): f"time.{name}{unit}()"
    for name in _SECONDS
    for unit in ("", "_ns")
    if hasattr(time, f"{name}{unit}")
} | {
    datetime.datetime.now: "datetime.now()",
    datetime.datetime.utcnow: "datetime.utcnow()",
}
_RANDOM_MODULE = random.__file__
THREADS = {
    threading.Thread.start.__code__: "threading.Thread",
    ThreadPoolExecutor.submit.__code__: "concurrent.futures.ThreadPoolExecutor",
}
_FILES = frozenset({_RANDOM_MODULE, *(code.co_filename for code in THREADS)}).union(
    FILES_OF_QUERIES, FILES_OF_QUEUES
)
_FUNCTIONS = frozenset({next, *CLOCKS})
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
        self._codes: dict[int, CodeType] = {}  # by identity: their own hash is slow
        self._profiling = profiling(self._profile)
        self._queries = QueryObserver(
            lambda name, frame: self._add(OutsideQuery, name, locate_from(frame))
        )
        self._heard = audited(self._queries.audit)

    def after(self, call: Call) -> None:
        self._operators += 1

    @property
    def names(self) -> set[str]:
        """The global names and attributes that the user's functions use, of those that ran in this thread."""
        return {name for code in self._codes.values() for name in code.co_names}

    def __enter__(self) -> HostObserver:
        self._lines.__enter__()
        self._heard.__enter__()
        self._profiling.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._profiling.__exit__(None, None, None)
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
                or code.co_flags & CO_GENERATOR
            ):
                self._codes[id(code)] = code
                self._queries.function_called(frame, frame.f_back)
                self._function_called(frame, frame.f_back)

    def _built_in_called(self, function: Any, caller: FrameType) -> None:
        if is_machinery(caller.f_code.co_filename):
            return
        if isinstance(getattr(function, "__self__", None), random.Random):
            found = _of_random(function.__name__)
        else:
            found = (ClockRead, CLOCKS[function]) if function in CLOCKS else None
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


class Seen(NamedTuple):
    """What a watch has to tell."""

    kind: type[PythonEvent]
    name: str


class Watch(Protocol):
    """Something to compare after each line of the user's."""

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        """What has changed since it was last asked; not `is_users`: while no line of the user's ran."""
        ...


class WatchedLines:
    """Asks its watches at each line of the user's, in the calling thread.

    Compiled methods, such as NumPy's and those of lists, are seen by no profile function: what shows
    what they did is the state that they leave behind.
    """

    def __init__(self, watches: Sequence[Watch], found: Callable[..., None]) -> None:
        self._watches = watches
        self._found = found  # called with the kind, the name and the place
        self._last = Place(None, (), False)
        self._before: Any = None

    def __enter__(self) -> WatchedLines:
        self._before = sys.gettrace()
        if self._watches:
            sys.settrace(self._call)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._watches:
            sys.settrace(self._before)
            self._check()

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return None if is_machinery(frame.f_code.co_filename) else self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self._check()
        if event == "line":
            self._last = locate_from(frame)
        elif event == "return":
            self._last = locate_from(frame.f_back)
        return self._line

    def _check(self) -> None:
        place = self._last
        for watch in self._watches:
            for seen in watch.after_line(is_users=place.location is not None):
                self._found(seen.kind, seen.name, place)


@contextmanager
def clocks_an_hour_ahead() -> Iterator[None]:
    """Let functions of the module `time` return a time an hour later in this block."""
    space, originals = vars(time), {}
    for name in ("time", "monotonic", "perf_counter"):
        for unit, factor in (("", 1.0), ("_ns", 1e9)):
            originals[name + unit] = clock = space[name + unit]
            space[name + unit] = partial(_later, clock, type(clock())(3600 * factor))
    try:
        yield
    finally:
        space.update(originals)


def _later(clock: Callable[[], Any], ahead: Any) -> Any:
    return clock() + ahead
