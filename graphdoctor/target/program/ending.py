"""A program that is ended from inside, after the diagnosis."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ProgramEnded(BaseException):
    """Raised in the program where it is ended after the diagnosis; no `except Exception` catches it."""


class Ending:
    """Ends each thread that comes here, and first of all tells the main one."""

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
