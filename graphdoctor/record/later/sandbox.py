"""Run a step with a time limit, without output, and without side effects outside the process."""

from __future__ import annotations

import builtins
import gc
import io
import logging
import marshal
import os
import pickle
import re
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

from graphdoctor.device.observe.interpreter import no_collection, profiling
from graphdoctor.record.host.observer import THREADS
from graphdoctor.record.session import calls_inside
from graphdoctor.target.frames import is_machinery, locate_from
from graphdoctor.target.program.quiet import audited, leaves_process, quiet
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.locations import Location

_WRITERS = (("torch._C", "PyTorchFileWriter"), ("safetensors.torch", "serialize_file"))  # in C
# Methods that write to what is open already, of which no audit hook is told.
_METHODS = {
    "TextIOWrapper": frozenset({"write", "writelines"}),
    "BufferedWriter": frozenset({"write"}),
    "BufferedRandom": frozenset({"write"}),
    "FileIO": frozenset({"write"}),
    "writer": frozenset({"writerow", "writerows"}),  # of csv
    "Connection": frozenset({"execute", "executemany", "executescript", "commit"}),  # of sqlite3
    "Cursor": frozenset({"execute", "executemany", "executescript"}),
    "socket": frozenset({"send", "sendall", "sendto", "sendmsg"}),
}
_FUNCTIONS = frozenset({os.write, pickle.dump, marshal.dump})
_NAMES = frozenset({"dump"}).union(*_METHODS.values())
_ONLY_WRITES = re.compile("[bt]?[wax][bt]?")


class LeavesStep(BaseException):
    """A later step does much more than this one, or changes something outside: it is not run to its end."""

    def __init__(self, place: Location | None) -> None:
        super().__init__("a later step does something else")
        self.place = place


class SideEffects:
    """What the calling thread may not do in a trial. Other threads do as they like."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        buffers = (getattr(stream, "buffer", None) for stream in streams)
        self._streams = {id(stream) for stream in (*streams, *buffers)}
        self._left: LeavesStep | None = None
        # Files that are written to, and where they ended.
        self._logs: dict[int, tuple[Any, int]] = {}

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Raise `LeavesStep` in this block for what reaches files, sockets, processes and threads.

        Files that the step opens to write are the null device; log records and `time.sleep` do nothing.
        What the step writes to a file that is open already, as to a log, is cut off again.
        """
        try:
            with ExitStack() as stack:
                for space, name, put in self._replacements():
                    stack.callback(space.__setitem__, name, space[name])
                    space[name] = put
                stack.callback(setattr, logging.Logger, "handle", logging.Logger.handle)
                logging.Logger.handle = self._instead_of(logging.Logger.handle, lambda: None)  # type: ignore[method-assign]
                stack.enter_context(audited(self._audit))
                stack.enter_context(profiling(self._profile))
                yield
        finally:
            for file, end in self._logs.values():
                file.seek(end)
                file.truncate()
            self._logs.clear()
            if self._left is not None:  # also if the step's own code has caught it
                raise self._left from None

    def _replacements(self) -> Iterator[tuple[dict[str, Any], str, Callable[..., Any]]]:
        for module, name in _WRITERS:
            if module in sys.modules:
                space = vars(sys.modules[module])
                yield space, name, self._instead_of(space[name], self._leave_here)
        for space in (vars(builtins), vars(io)):
            yield space, "open", self._opened_by(space["open"])
        yield vars(builtins), "print", self._printed_by(print)
        yield vars(time), "sleep", self._instead_of(time.sleep, lambda: None)

    def _instead_of(
        self, original: Callable[..., Any], act: Callable[[], object]
    ) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            return act()

        return replacement

    def _opened_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_path = isinstance(file, (str, bytes, os.PathLike))
            is_own = threading.get_ident() == self._thread
            if is_path and is_own and _ONLY_WRITES.fullmatch(mode):
                return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)
            return original(file, mode, *args, **kwargs)

        return opened

    def _printed_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def printed(*args: Any, **kwargs: Any) -> Any:
            write = getattr(kwargs.get("file"), "write", None)  # called by C: no profiler sees it
            if write is not None and threading.get_ident() == self._thread and self._writes(write):
                self._leave(sys._getframe(1))
            return original(*args, **kwargs)

        return printed

    def _leave_here(self) -> None:
        self._leave(sys._getframe(2))

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if leaves_process(event, args):
            self._leave(sys._getframe(2))

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if getattr(arg, "__name__", "") in _NAMES and self._writes(arg):
                self._leave(frame)
        elif event == "call" and frame.f_code in THREADS:
            self._leave(frame.f_back)

    def _writes(self, function: Any) -> bool:
        owner = getattr(function, "__self__", None)
        if id(owner) in self._streams or getattr(owner, "name", "") == os.devnull:
            return False
        if isinstance(function, BuiltinFunctionType) and function in _FUNCTIONS:
            return True
        if self._is_cut_off(owner):
            return False
        kinds = (base.__name__ for base in type(owner).__mro__)
        return any(function.__name__ in _METHODS.get(kind, ()) for kind in kinds)

    def _is_cut_off(self, writer: object) -> bool:
        """Whether a writer appends to a file on a disk, which is shortened again after the trial.

        What it writes in the middle of a file would be lost.
        """
        held = gc.get_referents(writer) if type(writer).__name__ == "writer" else ()  # of csv
        file: Any = next((each.__self__ for each in held if hasattr(each, "__self__")), writer)
        if not isinstance(file, io.IOBase):
            return False
        try:
            file.flush()
            status, position = os.fstat(file.fileno()), file.tell()
            is_log = stat.S_ISREG(status.st_mode) and not file.readable()
            if is_log and position == status.st_size:
                self._logs.setdefault(id(file), (file, position))
        except (OSError, ValueError):  # it has no descriptor, or is closed
            return False
        return is_log and id(file) in self._logs and position >= self._logs[id(file)][1]

    def _leave(self, frame: FrameType | None) -> None:
        place = locate_from(frame).location
        if place is not None:  # else it is for graphdoctor or torch itself
            self._left = self._left or LeavesStep(place)
            raise self._left


_MORE_LINES = 2_000
_TIMES_LINES = 4
_LEAST_S = 10.0  # less would end trials on a busy machine
_TIMES_SECONDS = 20


@contextmanager
def sandboxed(lines: LineTrace) -> Iterator[LineTrace]:
    """Limit the calls of a step in this block, by the lines and the time of an ordinary call.

    Raises `LeavesStep` for a call that takes far longer, writes outside the process, or exits.
    """
    seen = LineTrace(_TIMES_LINES * lines.count + _MORE_LINES)
    seconds = max(_LEAST_S, _TIMES_SECONDS * lines.seconds)
    ended = partial(_ended_after, seconds)  # the call alone: to restore gigabytes takes longer
    effects = SideEffects()  # knows the program's own streams, which `quiet` replaces
    with quiet(), calls_inside(ended, effects.refused, seen.counted):
        try:
            yield seen
        except UserCodeError as error:
            if isinstance(error.__cause__, LeavesStep):
                raise error.__cause__ from None
            if isinstance(error.__cause__, SystemExit):
                raise LeavesStep(None) from None
            raise


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End a run that waits or computes for longer, in the main thread and if no other alarm is set."""
    is_main = threading.current_thread() is threading.main_thread()
    has_timer = hasattr(signal, "setitimer")
    if not is_main or not has_timer or any(signal.getitimer(signal.ITIMER_REAL)):
        yield
        return
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        stack.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield


def _over(number: int, frame: FrameType | None) -> None:
    raise LeavesStep(locate_from(frame).location)


_MOST_KEPT = 50_000
Line = tuple[CodeType, int]


class LineTrace:
    """Counts the user's lines of a run, and keeps them; ends a run of more than `most`."""

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self.seconds = 0.0
        self.codes: dict[CodeType, None] = {}
        self.lines: list[Line] = []
        self._most = most

    @contextmanager
    def counted(self) -> Iterator[None]:
        before, begun_s = sys.gettrace(), time.perf_counter()
        with no_collection():  # a finalizer is no line of the step
            sys.settrace(self._call)
            try:
                yield
            finally:
                sys.settrace(before)
        self.seconds = time.perf_counter() - begun_s

    def branch_to(self, other: LineTrace) -> Location | None:
        """The line after which another run continues at another line; None if the lines are the same."""
        pairs = zip(pairwise(self.lines), pairwise(other.lines), strict=False)
        for (line, following), (other_line, other_following) in pairs:
            if line == other_line and following != other_following:
                code, number = line
                return Location(code.co_filename, number, code.co_name)
        return None

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if is_machinery(frame.f_code.co_filename):
            return None
        if frame.f_code.co_filename == "<string>":  # a named tuple's, also graphdoctor's
            return None
        self.codes.setdefault(frame.f_code)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.count += 1
            self._keep(frame)
        elif event == "return":  # the rest of the caller's line runs next, such as its branch
            caller = frame.f_back
            while caller is not None and is_machinery(caller.f_code.co_filename):
                caller = caller.f_back
            if caller is not None:
                self._keep(caller)
        if self._most is not None and self.count > self._most:
            sys.settrace(None)
            raise LeavesStep(locate_from(frame).location)
        return self._line

    def _keep(self, frame: FrameType) -> None:
        if len(self.lines) < _MOST_KEPT:
            self.lines.append((frame.f_code, frame.f_lineno))
