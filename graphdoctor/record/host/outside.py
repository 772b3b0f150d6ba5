"""What a step asks of the world outside it: files, other processes, the environment, what another thread sets.

A replay asks nothing, and nobody can know what would be answered later.
"""

from __future__ import annotations

import ast
import importlib
import io
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any

import torch

from graphdoctor.device.emulated import cuda as emulated_cuda
from graphdoctor.record.host.asked import ASKED, Answer
from graphdoctor.record.host.expressions import expression_of
from graphdoctor.record.host.shown import Shown, keeps_answer
from graphdoctor.target.frames import is_machinery, is_own, is_torch
from graphdoctor.values.host_events import OF_ENVIRONMENT

_EMULATED = emulated_cuda.__file__
BUILT_IN = {one.function: one for one in ASKED if not isinstance(one.function, FunctionType)}
_PYTHONS = {one.function.__code__: one for one in ASKED if isinstance(one.function, FunctionType)}
_FILES_OF_PATHS = frozenset(
    code.co_filename
    for code in (
        pathlib.Path.stat.__code__,  # which the others ask; in Python 3.13, from another file
        *(code for code, one in _PYTHONS.items() if one.owner in (os.path, pathlib.Path)),
    )
)
_EMULATED_NAMES = {one.attribute: one for one in ASKED if one.owner is torch.cuda}
Methods = Mapping[tuple[str, str], frozenset[str]]  # of C types, by the type's module and name
_METHODS: Methods = {
    ("_socket", "socket"): frozenset({"recv", "recv_into", "recvfrom", "accept"}),
    ("sqlite3", "Connection"): frozenset({"execute"}),
    ("sqlite3", "Cursor"): frozenset({"execute", "fetchone", "fetchall", "fetchmany"}),
    ("functools", "_lru_cache_wrapper"): frozenset({"cache_info"}),
    ("_thread", "lock"): frozenset({"locked"}),
    ("_queue", "SimpleQueue"): frozenset({"empty", "qsize"}),
    ("select", "epoll"): frozenset({"poll"}),
    ("select", "poll"): frozenset({"poll"}),
    ("_ssl", "_SSLSocket"): frozenset({"read"}),
    ("_asyncio", "Future"): frozenset({"done"}),
}
_OF_LOCKS = (("_thread", "lock"), ("_thread", "RLock"), ("_multiprocessing", "SemLock"))
_LOCKS: Methods = dict.fromkeys(_OF_LOCKS, frozenset({"acquire"}))
_READS = frozenset({"read", "read1", "readline", "readlines", "readinto", "tell"})
_NAMES = _READS.union(
    *_METHODS.values(),
    *_LOCKS.values(),
    (function.__name__ for function in BUILT_IN),
)
_GETITEM = type(os.environ).__getitem__.__code__
# In these is every function of Python's that tells of a question.
FILES_ASKED = frozenset({_EMULATED, *(code.co_filename for code in (_GETITEM, *_PYTHONS))})
# Python's own that look at files for themselves: to import, to warn, to log, to show a line.
_FOR_ITSELF = (
    *(
        f"{os.sep}{name}.py"
        for name in ("linecache", "warnings", "traceback", "inspect", "tokenize")
    ),
    *(f"{os.sep}{name}{os.sep}" for name in ("logging", "importlib", "zoneinfo")),
)
_IMPORT = "<frozen importlib"
_OF_MACHINE = ("/proc/", "/sys/", "/dev/")
_STARTING = ("subprocess.Popen", "posix_spawn")
_CONNECTED = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
_OPENED = ("open", "os.listdir", "os.scandir", "subprocess.Popen", "os.posix_spawn")


class Asking:
    """Tells of each question that the user's code asks: whoever uses it hands on what is about to be called."""

    def __init__(self, asked: Callable[[str, Answer, FrameType], None]) -> None:
        self._asked = asked  # called with a name, what the answer is, and the user's frame
        self._shown = Shown()

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """What Python tells audit hooks."""
        if event in _CONNECTED:
            self._tell(f"{event}()", "decides", sys._getframe(2))
        if event not in _OPENED:
            return
        path = args[0] if isinstance(args[0], (str, bytes)) else ""
        if event == "open" and (not path or path == os.devnull or not _is_read(args)):
            return
        name = f"{event.removeprefix('os.')} of {os.path.basename(os.fsdecode(path))!r}"
        self._tell(name, _answer_of(path), sys._getframe(2))

    def built_in_called(self, function: Any, caller: FrameType) -> None:
        """A function in C is about to be called."""
        if getattr(function, "__name__", "") not in _NAMES:
            return
        owner, name = getattr(function, "__self__", None), function.__name__
        if isinstance(owner, io.IOBase):
            is_asked = name in _READS and not is_machinery(caller.f_code.co_filename)
            if is_asked and not isinstance(owner, (io.StringIO, io.BytesIO)):
                answer = _answer_of(getattr(owner, "name", ""))
                self._tell(f"{name}() of an open file", answer, caller)
        elif is_method_of(owner, name, _METHODS):
            self._tell(f"{type(owner).__name__}.{name}()", "decides", caller)
        elif is_method_of(owner, name, _LOCKS):
            # Python's own locks guard its own work; those of processes are what multiprocessing.Event is made of.
            is_own = is_machinery(caller.f_code.co_filename) and type(owner).__module__ == "_thread"
            if _reads_shared_value(caller) or (not is_own and _waits_not(expression_of(caller))):
                self._tell(f"{type(owner).__name__}.acquire()", "decides", caller)
        elif isinstance(function, BuiltinFunctionType) and function in BUILT_IN:
            asked = BUILT_IN[function]
            if not _is_asked_of_files(caller):
                self._tell(asked.name, asked.answer, caller)

    def function_called(self, frame: FrameType, caller: FrameType) -> None:
        """A function of Python's begins."""
        code = frame.f_code  # each look at it costs a call of every audit hook
        if code is _GETITEM:
            self._tell(f"{OF_ENVIRONMENT}{frame.f_locals.get('key')}", "configures", caller)
        elif not is_machinery(caller.f_code.co_filename):
            is_emulated = code.co_filename == _EMULATED
            found = _EMULATED_NAMES.get(code.co_name) if is_emulated else _PYTHONS.get(code)
            if found is not None:
                self._tell(found.name, found.answer, caller)

    def _tell(self, name: str, answer: Answer, frame: FrameType) -> None:
        user = who_asks(frame)
        # Python's own code, as that of copy.deepcopy(), tells objects apart by where they lie, and nothing else.
        if user is None or (name == "id()" and user is not frame):
            return
        does_more = name.startswith(_STARTING) or (user is not frame and keeps_answer(user))
        if does_more or not self._shown.is_only_shown(user):
            self._asked(name, answer, user)


def _is_asked_of_files(frame: FrameType) -> bool:
    """Whether the user's code asks a function of Python's whether a file is there, which tells of that itself."""
    is_asked = False
    while frame.f_code.co_filename in _FILES_OF_PATHS and frame.f_back is not None:
        found = _PYTHONS.get(frame.f_code)
        is_asked = found is not None and found.answer == "either"
        frame = frame.f_back
    return is_asked and not is_machinery(frame.f_code.co_filename)


def _waits_not(call: ast.AST | None) -> bool:
    """Whether a lock is asked for and not waited for: `lock.acquire(blocking=False)`."""
    if not isinstance(call, ast.Call):
        return False
    keywords = {one.arg: one.value for one in call.keywords}
    first = call.args[0] if call.args else keywords.get("blocking")
    is_off = isinstance(first, ast.Constant) and not first.value
    return is_off or "timeout" in keywords


def _reads_shared_value(frame: FrameType) -> bool:
    """Whether a lock is asked for by what reads `multiprocessing.Value().value`."""
    shared = sys.modules.get("multiprocessing.sharedctypes")
    asks = frame.f_code.co_name.startswith("get") and frame.f_code.co_filename == "<string>"
    return (
        asks
        and shared is not None
        and isinstance(frame.f_locals.get("self"), shared.SynchronizedBase)
    )


def _answer_of(path: object) -> Answer:
    return "measures" if tells_of_machine(path) else "decides"


def tells_of_machine(path: object) -> bool:
    if not isinstance(path, (str, bytes)) or os.fsdecode(path) == os.devnull:
        return False
    return os.fsdecode(path).startswith(_OF_MACHINE)


def who_asks(frame: FrameType | None) -> FrameType | None:
    """The user's frame; None where torch, graphdoctor or Python's library asks for itself."""
    is_import = False  # which nobody asks for twice, but to read a module anew
    while frame is not None and is_machinery(file := frame.f_code.co_filename):
        is_load = file.endswith(f"torch{os.sep}serialization.py")
        if (is_torch(file) and not is_load) or is_own(file):
            return None
        if frame.f_code is importlib.reload.__code__:
            is_import = False
        elif file.startswith(_IMPORT):
            is_import = True
        elif any(part in file for part in _FOR_ITSELF):
            return None
        frame = frame.f_back
    return None if is_import else frame


def _is_read(args: tuple[Any, ...]) -> bool:
    mode, flags = (*args, None, None)[1:3]
    if isinstance(mode, str):
        return "r" in mode or "+" in mode
    return isinstance(flags, int) and not flags & os.O_WRONLY


def is_method_of(owner: object, name: str, methods: Methods) -> bool:
    """Whether a table has this method of an object, or of what its class inherits from."""
    kinds = ((base.__module__, base.__name__) for base in type(owner).__mro__)
    return any(name in methods.get(kind, ()) for kind in kinds)
