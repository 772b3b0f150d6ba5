"""A run of the step that leaves no trace outside the process: it ends where the user's code is about to leave one.

A file that it opens to write to is the null device instead: most are logs, and nothing of a graph hangs on them.
Python's audit hooks tell what is opened, started and removed. What goes through something that is open already
(a file, a socket, a database) tells nobody: there each call of a C function is looked at before it is made.
"""

from __future__ import annotations

import builtins
import io
import logging
import marshal
import os
import pickle
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from types import BuiltinFunctionType, FrameType
from typing import Any

from graphdoctor.record.host.loggers import hands_on_plainly
from graphdoctor.record.host.observer import THREADS, profile_by
from graphdoctor.record.host.outside import Asking, Methods, is_method_of
from graphdoctor.target.frames import locate_from
from graphdoctor.target.program.quiet import audited, leaves_process
from graphdoctor.target.user_code import is_user_file
from graphdoctor.values.locations import Location

_WRITERS = (
    ("torch._C", "PyTorchFileWriter"),
    ("safetensors.torch", "serialize_file"),
)  # in C, unseen
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_METHODS: Methods = {
    ("_csv", "writer"): frozenset({"writerow", "writerows"}),
    ("sqlite3", "Connection"): frozenset({"execute", "executemany", "executescript", "commit"}),
    ("sqlite3", "Cursor"): frozenset({"execute", "executemany", "executescript"}),
    ("_socket", "socket"): frozenset({"send", "sendall", "sendto", "sendmsg"}),
    ("mmap", "mmap"): frozenset({"write", "write_byte", "flush", "resize"}),
    ("numpy", "ndarray"): frozenset({"tofile"}),
    ("_queue", "SimpleQueue"): frozenset({"put", "put_nowait"}),
}
_OF_OS = ("write", "writev", "pwrite", "sendfile", "_exit", "abort")
_FUNCTIONS = {getattr(os, name) for name in _OF_OS if hasattr(os, name)} | {
    pickle.dump,
    marshal.dump,
}
_OF_FILES = frozenset({"write", "writelines", "truncate"})
# Looked at first, since a step has a million calls: hardly any has such a name.
_NAMES = _OF_FILES.union(*_METHODS.values(), (function.__name__ for function in _FUNCTIONS))
_ONLY_WRITES = re.compile("[bt]?[wax][bt]?")
_PUT = queue.Queue.put.__code__
_HANDING_ON = frozenset({"start", "submit", "put"})
_STANDARD = (1, 2)  # where output and errors go: what is printed harms nobody


Redirect = Callable[[io.TextIOBase], AbstractContextManager[object]]


class LeavesStep(BaseException):
    """A later step does much more than this one, or changes something outside: it is not run to its end."""

    def __init__(self, place: Location | None) -> None:
        super().__init__("a later step does something else")
        self.place = place


class Inside:
    """A run of the step by this thread, which is ended where it is about to change something outside the process."""

    def __init__(self, redirects: Sequence[Redirect] = ()) -> None:
        self._redirects = redirects  # of standard streams that are the user's own
        self._thread = threading.get_ident()  # what others do is theirs
        self._streams = set(map(id, _streams()))
        self._left: LeavesStep | None = None
        self._asking = Asking(self._asked)

    @contextmanager
    def only(self) -> Iterator[None]:
        try:
            with ExitStack() as stack:
                for space, name, put in self._stand_ins():
                    stack.callback(space.__setitem__, name, space[name])
                    space[name] = put
                stack.callback(setattr, logging.Logger, "handle", logging.Logger.handle)
                logging.Logger.handle = self._handled_by(logging.Logger.handle)  # type: ignore[method-assign]
                for redirect in self._redirects:
                    stack.enter_context(redirect(_OfUser(self)))
                stack.enter_context(audited(self._audit))
                stack.callback(profile_by, sys.getprofile())
                sys.setprofile(self._profile)
                yield
        finally:
            if self._left is not None:  # also where the step's own code has caught it
                raise self._left from None

    def _stand_ins(self) -> Iterator[tuple[dict[str, Any], str, Callable[..., Any]]]:
        for module, kind in _WRITERS:
            if module in sys.modules:
                space = vars(sys.modules[module])
                yield space, kind, self._in_place_of(space[kind], lambda kwargs: self._leave_here())
        yield vars(builtins), "print", self._in_place_of(print, self._before_print)
        for space in (vars(builtins), vars(io)):
            yield space, "open", self._opened_by(space["open"])
        yield vars(time), "sleep", self._in_place_of(time.sleep, lambda kwargs: True)
        # What watches this run is no answer for the step.
        for name, ask in (("gettrace", sys.gettrace), ("getprofile", sys.getprofile)):
            if isinstance(ask, BuiltinFunctionType):  # and not told to be something else
                yield vars(sys), name, partial(_same, ask())

    def _in_place_of(
        self, original: Callable[..., Any], skips: Callable[[Mapping[str, Any]], bool]
    ) -> Callable[..., Any]:
        """The same, but for the thread of the step, where `skips` may end the run, or say that nothing is called."""

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread and skips(kwargs):
                return None
            return original(*args, **kwargs)

        return stand_in

    def _handled_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A record is made into text and goes nowhere; what the user's own handlers do with it is not tried."""

        def handle(logger: logging.Logger, record: logging.LogRecord) -> Any:
            if threading.get_ident() != self._thread:
                return original(logger, record)
            if not hands_on_plainly(logger):
                self.leave()
            record.getMessage()
            return None

        return handle

    def _opened_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same; but what the user's code would write to a file goes nowhere."""

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            is_path = isinstance(file, (str, bytes, os.PathLike))
            is_written = is_path and _ONLY_WRITES.fullmatch(mode)
            if is_written and threading.get_ident() == self._thread and _is_in_step():
                return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)
            if is_path and threading.get_ident() == self._thread:  # this function hides who asks
                self._asking.audit("open", (os.fspath(file), mode))
            return original(file, mode, *args, **kwargs)

        return opened

    def _before_print(self, given: Mapping[str, Any]) -> bool:
        if self._is_file(given.get("file")):
            self._leave_here()
        return False

    def leave(self) -> None:
        """Where the caller's caller is the user's."""
        self._leave(sys._getframe(2))

    def _leave_here(self) -> bool:
        self._leave(sys._getframe(3))
        return False

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        self._asking.audit(event, args)
        if leaves_process(event, args):
            self._leave(sys._getframe(2))

    def _asked(self, name: str, answer: str, frame: FrameType) -> None:
        """What nobody knows the answer of, such as a file that is read."""
        if answer == "decides":
            self._leave(frame)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if getattr(arg, "__name__", "") in _NAMES and self._is_outward(arg):
                self._leave(frame)
            self._asking.built_in_called(arg, frame)
        elif event == "call" and frame.f_code.co_name in _HANDING_ON and _hands_on(frame):
            self._leave(frame.f_back)

    def _is_outward(self, function: Any) -> bool:
        owner, name = getattr(function, "__self__", None), function.__name__
        if isinstance(owner, _FILES):
            return name in _OF_FILES and self._is_file(owner)
        if is_method_of(owner, name, _METHODS):
            return True
        with suppress(TypeError):  # a callable that cannot be hashed
            return function in _FUNCTIONS
        return False

    def _is_file(self, stream: Any) -> bool:
        """A file that is open, and neither a standard stream nor the null device."""
        if not isinstance(stream, _FILES) or id(stream) in self._streams:
            return False
        with suppress(OSError, ValueError):  # closed, or a file of no descriptor
            return stream.fileno() not in _STANDARD and stream.name != os.devnull
        return False

    def _leave(self, frame: FrameType | None) -> None:
        found = locate_from(frame)
        place = next((one for one in found.stack if is_user_file(one.file)), found.location)
        if place is not None:  # else it is for graphdoctor or torch itself
            self._left = self._left or LeavesStep(place)
            raise self._left


class _OfUser(io.TextIOBase):
    """In the place of a standard stream of the user's own: what that does with a text is not tried."""

    def __init__(self, inside: Inside) -> None:
        super().__init__()
        self._inside = inside

    def write(self, text: str) -> int:
        self._inside.leave()
        return len(text)


def _is_in_step() -> bool:
    return locate_from(sys._getframe(2)).location is not None


def _same(told: object) -> object:
    return told


def _streams() -> Iterator[object]:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        yield stream
        yield getattr(stream, "buffer", None)


def _hands_on(frame: FrameType) -> bool:
    """Whether a function that begins gives work to another thread: one that it starts, or that waits for it."""
    if frame.f_code is not _PUT:
        return frame.f_code in THREADS
    waiting = getattr(getattr(frame.f_locals.get("self"), "not_empty", None), "_waiters", None)
    return bool(waiting)
