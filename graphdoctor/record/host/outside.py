"""What a step queries outside itself: files, sockets, processes and environment variables.

A replay does not repeat such a call: its result is frozen at capture.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any

from graphdoctor.target.frames import is_machinery, is_own, is_torch

# Functions of Python's library that code calls for their result. Opened files and connections are
# seen by Python's audit hooks, whoever opens them.
_QUERIES: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("os", os, ("stat", "access")),
    ("os.path", os.path, ("exists", "isfile", "isdir", "getmtime", "getsize")),
    ("pathlib.Path", pathlib.Path, ("exists", "is_file", "is_dir", "stat", "iterdir")),
    ("socket", socket.socket, ("accept", "recv", "recv_into", "recvfrom")),
)
_NAMES = {
    getattr(owner, name): f"{prefix}.{name}()"
    for prefix, owner, names in _QUERIES
    for name in names
    if hasattr(owner, name)
}
_BUILT_IN = {f.__name__: text for f, text in _NAMES.items() if not isinstance(f, FunctionType)}
_FUNCTIONS = {f.__code__: text for f, text in _NAMES.items() if isinstance(f, FunctionType)}
_GETITEM = type(os.environ).__getitem__.__code__
FILES_OF_QUERIES = frozenset(code.co_filename for code in (_GETITEM, *_FUNCTIONS))
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
        name = _BUILT_IN.get(getattr(function, "__name__", ""))
        if name is None or is_machinery(caller.f_code.co_filename):
            return
        is_socket = isinstance(getattr(function, "__self__", None), socket.socket)
        if is_socket or (isinstance(function, BuiltinFunctionType) and function in _NAMES):
            self._found(name, caller)

    def function_called(self, frame: FrameType, caller: FrameType) -> None:
        """A function of Python's begins."""
        code = frame.f_code
        if code is _GETITEM:
            self._found(f"the environment variable {frame.f_locals.get('key')}", caller)
        elif not is_machinery(caller.f_code.co_filename) and code in _FUNCTIONS:
            self._found(_FUNCTIONS[code], caller)

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
