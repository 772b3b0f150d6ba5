"""Run a script or module with its arguments as Python would, end it from inside, and say how it ended."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import linecache
import os
import runpy
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import TextIO

from graphdoctor.target.frames import is_machinery
from graphdoctor.values.errors import UsageError
from graphdoctor.values.program import Ending


class ProgramEnded(BaseException):
    """Raised in the program where it is ended after the diagnosis; no `except Exception` catches it."""


class ThreadEnding:
    """Ends each thread that comes here; the first one interrupts the main thread."""

    def __init__(self) -> None:
        self._has_told_main = False

    def end(self) -> None:
        """Raise ProgramEnded. The main thread may wait for this thread's answers for ever."""
        main = threading.main_thread()
        if threading.current_thread() is not main and not self._has_told_main:
            self._has_told_main = True
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGINT)
        raise ProgramEnded


@contextmanager
def unseen() -> Iterator[None]:
    """In the block, a thread that was ended here is not reported as one that failed."""
    before = threading.excepthook

    def excepthook(args: threading.ExceptHookArgs) -> object:
        return None if args.exc_type is ProgramEnded else before(args)

    threading.excepthook = excepthook
    try:
        yield
    finally:
        threading.excepthook = before


EXIT_INTERRUPTED = 130
_HERE = str(Path(__file__).parents[2]) + os.sep
_LAUNCHING = (f"{os.sep}runpy.py", "<frozen runpy>")
_TARGET = f"{_HERE}target{os.sep}"
# These call the program's functions in torch's place; the rest of `target/` looks at what the program holds.
_CALLING = tuple(f"{_TARGET}program{os.sep}{name}.py" for name in ("events", "watch"))


@dataclass(frozen=True, slots=True)
class Program:
    """`python name *arguments`, or `python -m name *arguments`."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        return (*(("-m",) if self.is_module else ()), self.name, *self.arguments)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `text` is what Python would have written to stderr, in the program's frames."""

    ending: Ending
    exit_code: int
    text: str = ""


def run_program(
    program: Program, is_ended: Callable[[], bool], *, sources: Mapping[str, str] | None = None
) -> Ended:
    """Run it as `__main__` to its end, with all threads that Python would wait for.

    `is_ended`: whether graphdoctor ended it. `sources` has other text for files, by their paths, which
    runs in their place. Raises UsageError where there is no such program.
    """
    changed = sources or {}
    main: Callable[[], object] = (
        partial(runpy.run_module, program.name, run_name="__main__", alter_sys=True)
        if program.is_module
        else _script(program, changed)
    )
    others = frozenset(threading.enumerate())
    with _as_main(program), instead_of(changed), _warnings_of_program():
        ended = _run(main, is_ended)
        if ended.ending == "finished":
            ended = _after_threads(ended, others)
        if is_ended() and ended.ending != "raised":
            return Ended("ended by graphdoctor", 0)
        return ended


def _run(main: Callable[[], object], is_ended: Callable[[], bool]) -> Ended:
    try:
        main()
    except ProgramEnded:
        return Ended("ended by graphdoctor", 0)
    except SystemExit as error:
        code = error.code
        if code is None or isinstance(code, int):
            return Ended("finished", code or 0)
        return Ended("finished", 1, str(code))
    except KeyboardInterrupt as error:
        if is_ended():
            return Ended("ended by graphdoctor", 0)
        return Ended("interrupted", EXIT_INTERRUPTED, _traceback(error))
    except BaseException as error:
        return Ended("raised", 1, _traceback(error))
    return Ended("finished", 0)


def _after_threads(ended: Ended, others: frozenset[threading.Thread]) -> Ended:
    """When the program's threads that Python waits for have ended, too; `others` were there before it."""
    try:
        for thread in threading.enumerate():
            if thread not in others and not thread.daemon:
                thread.join()
    except KeyboardInterrupt as error:
        return Ended("interrupted", EXIT_INTERRUPTED, _traceback(error))
    return ended


def _script(program: Program, changed: Mapping[str, str]) -> Callable[[], None]:
    file = os.path.abspath(program.name)
    try:
        code = compile(changed.get(file) or Path(file).read_bytes(), file, "exec")
    except OSError as error:
        raise UsageError(f"cannot read the program {program.name}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{program.name} is no Python program: {error}") from None

    def run() -> None:
        main = ModuleType("__main__")
        main.__dict__.update(__file__=file, __builtins__=builtins, __cached__=None)
        sys.modules["__main__"] = main
        exec(code, main.__dict__)

    return run


@contextmanager
def _as_main(program: Program) -> Iterator[None]:
    """`sys.argv`, `sys.path[0]` and `__main__` as Python sets them."""
    argv, path, main = sys.argv, list(sys.path), sys.modules.get("__main__")
    sys.argv = [program.name, *program.arguments]
    folder = os.getcwd() if program.is_module else os.path.dirname(os.path.realpath(program.name))
    sys.path[0:1] = [folder]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        if main is not None:
            sys.modules["__main__"] = main


def _traceback(error: BaseException) -> str:
    """As Python writes it, without graphdoctor's frames and those that started the program."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error.__traceback__ = trace
    shown = traceback.TracebackException.from_exception(error)
    waiting, seen = [shown], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kept = [frame for frame in each.stack if not _is_ours(frame.filename)]
        each.stack = traceback.StackSummary.from_list(kept)
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
    return "".join(shown.format()).rstrip("\n")


def _is_ours(filename: str) -> bool:
    return filename.startswith(_HERE) or filename.endswith(_LAUNCHING)


@contextmanager
def _warnings_of_program() -> Iterator[None]:
    """In the block, warnings name lines as without graphdoctor, whose frames are between the program and torch."""
    show = warnings.showwarning

    def show_at_program(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        frame: FrameType | None = sys._getframe(1) if is_machinery(filename) else None
        while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (
            filename,
            lineno,
        ):
            frame = frame.f_back
        while frame is not None and is_machinery(name := frame.f_code.co_filename):
            if name.startswith(_TARGET) and name not in _CALLING:
                return  # graphdoctor looks at an object that warns when it is read
            frame = frame.f_back
        if frame is not None and filename.startswith(_HERE):
            filename, lineno = frame.f_code.co_filename, frame.f_lineno
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_at_program
    try:
        yield
    finally:
        warnings.showwarning = show


class _Loader(importlib.abc.SourceLoader):
    """Neither reads nor writes compiled files, since it knows no time of the source."""

    def __init__(self, name: str, file: str, text: str) -> None:
        self._name, self._file, self._text = name, file, text

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_data(self, path: str | bytes) -> bytes:
        if path != self._file:
            raise OSError(f"{path!r} is not {self._file}")
        return self._text.encode()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        file = found.origin if found is not None else None
        if found is None or file is None or file not in self._sources:
            return None
        found.loader = _Loader(fullname, file, self._sources[file])
        return found


@contextmanager
def instead_of(sources: Mapping[str, str]) -> Iterator[None]:
    """In the block, modules of these files are made from other text; their names and paths stay.

    What reads the source of a function, as a captured step does, reads the text that runs.
    """
    finder = _Finder(sources)
    sys.meta_path.insert(0, finder)
    for file, text in sources.items():
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    try:
        yield
    finally:
        for file in sources:
            linecache.cache.pop(file, None)
        sys.meta_path.remove(finder)
