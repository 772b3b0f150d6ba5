"""A signal that graphdoctor listens to beside the program, whose own handler is kept and answered for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class SharedSignals:
    """Calls ours, then the program's handler, which it may set and ask for as ever.

    `listeners`: what to call, by the signal's number. Where the program has no handler, a signal
    whose default ends the process (`ends`) ends it as if nobody had listened.
    """

    def __init__(
        self, listeners: dict[int, Callable[[], None]], ends: frozenset[int] = frozenset()
    ) -> None:
        self._listeners = listeners
        self._ends = ends
        self._theirs: dict[int, Any] = {}
        self._set, self._get = signal.signal, signal.getsignal
        self._is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Listen while the block runs; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in self._listeners:
            theirs = self._get(number)
            if theirs is not None:  # else a handler that is not Python's has it
                self._theirs[number] = theirs
                self._set(number, self._arrived)
        signal.signal, signal.getsignal = self._signal, self._getsignal  # type: ignore[assignment]
        self._is_on = True
        try:
            yield
        finally:
            self.off()

    def off(self) -> None:
        """Give the signals back; also in a child of a fork."""
        if not self._is_on:
            return
        self._is_on = False
        signal.signal, signal.getsignal = self._set, self._get
        for number, theirs in self._theirs.items():
            if self._get(number) == self._arrived:
                self._set(number, theirs)

    def _signal(self, number: int, handler: Any) -> Any:
        """In the place of signal.signal."""
        if not self._is_on or number not in self._theirs:
            return self._set(number, handler)
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            return self._set(number, handler)  # which says what is wrong with it
        if threading.current_thread() is not threading.main_thread():
            return self._set(number, handler)  # which says that this thread may not
        before, self._theirs[number] = self._theirs[number], handler
        self._set(number, self._arrived)
        return before

    def _getsignal(self, number: int) -> Any:
        """In the place of signal.getsignal."""
        return self._theirs[number] if self._is_on and number in self._theirs else self._get(number)

    def _arrived(self, number: int, frame: Any) -> None:
        theirs = self._theirs[number]
        ends = number in self._ends
        if not ends or theirs == signal.SIG_DFL:
            self._listeners[number]()
        if callable(theirs):
            theirs(number, frame)
        elif ends and theirs == signal.SIG_DFL:
            self._set(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
