"""Run a step again without output and without writing files, which belong to the program."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from operator import is_
from typing import Any

from graphdoctor.values.errors import GraphDoctorError

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_EVENTS = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink",
    "os.system", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.sendto",
    "socket.sendmsg", "sqlite3.connect", "shutil.", "os.kill",
)  # fmt: skip
_MOVES = "os.chdir"
# Python tells of each `id(x)` and `frame.f_code`, a million times in an analysis: nobody wants to hear of these.
_LOOKS = frozenset({"object.__getattr__", "builtins.id", "sys._getframe"})
_COMPILERS = (f"{os.sep}torch{os.sep}_inductor{os.sep}", f"{os.sep}triton{os.sep}")
_thread = threading.local()
_lock = threading.Lock()
_blocks = 0
# Python calls a hook for each `id(x)` as long as the process lives: outside of all blocks, a C function that
# has no effect.
_hook: Any = partial(is_)
_is_installed = False


class SideEffect(GraphDoctorError):
    """The step does something outside of its memory, so that it must not be run again."""


@contextmanager
def quiet() -> Iterator[None]:
    """What is written to stdout and stderr by this thread is dropped; by the main thread, from C too."""
    is_main = threading.current_thread() is threading.main_thread()
    with ExitStack() as stack, open(os.devnull, "w", encoding="utf-8") as nothing:
        if is_main:
            for number, stream in ((1, sys.stdout), (2, sys.stderr)):
                stack.enter_context(_descriptor(number, stream, nothing.fileno()))
        stack.enter_context(redirect_stdout(_Apart(sys.stdout, nothing)))
        stack.enter_context(redirect_stderr(_Apart(sys.stderr, nothing)))
        yield


@contextmanager
def _descriptor(number: int, stream: Any, into: int) -> Iterator[None]:
    with suppress(Exception):
        stream.flush()
    try:
        saved = os.dup(number)
    except OSError:  # it is closed
        yield
        return
    os.dup2(into, number)
    try:
        yield
    finally:
        with suppress(Exception):
            stream.flush()
        os.dup2(saved, number)
        os.close(saved)


class _Apart:
    """A stream for all threads but the one that made it, which gets another one."""

    def __init__(self, stream: Any, other: Any) -> None:
        self._stream, self._other = stream, other
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        is_apart = threading.get_ident() == self._thread
        return getattr(self._other if is_apart else self._stream, name)


@contextmanager
def audited(hear: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """In the block, `hear` is told what Python tells audit hooks of this thread, but for looks; it may raise.

    A hook stays for the life of the process, so there is one, which mostly does nothing.
    """
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_hook)
    before = getattr(_thread, "hearing", ())
    _thread.hearing = (*before, hear)
    _count_blocks(+1)
    try:
        yield
    finally:
        _count_blocks(-1)
        _thread.hearing = before


def _count_blocks(change: int) -> None:
    global _blocks
    with _lock:
        _blocks += change
        _hook.__setstate__((_audit if _blocks else is_, (), {}, None))


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in _LOOKS:
        return
    for hear in getattr(_thread, "hearing", ()):
        hear(event, args)


@contextmanager
def without_side_effects() -> Iterator[None]:
    """In the block, this thread opens no file for writing, starts no process, connects to nothing.

    What a compiler of torch's writes into its cache is none. Raises SideEffect at the end, too, where
    the user's code swallowed it.
    """
    refused: list[str] = []

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if (leaves_process(event, args) or event == _MOVES) and not _in_compiler():
            what = f"writes {os.fsdecode(args[0])}" if event == "open" else f"calls {event}"
            refused.append(f"The step {what}, so it was not run a second time.")
            raise SideEffect(refused[-1])

    with audited(hear):
        yield
    if refused:
        raise SideEffect(refused[0])


def leaves_process(event: str, args: tuple[Any, ...]) -> bool:
    """Whether what an audit hook of Python's is told of changes something outside of this process.

    What is written to a file that is open already tells no hook.
    """
    if event != "open":
        return event.startswith(_EVENTS)
    path, _, flags = (*args, None, 0)[:3]
    is_path = isinstance(path, (str, bytes)) and os.fsdecode(path) != os.devnull
    return is_path and isinstance(flags, int) and bool(flags & _WRITING)


def _in_compiler() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _COMPILERS):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
