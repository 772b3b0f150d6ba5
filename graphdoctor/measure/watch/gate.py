"""What a window of the profiler must not meet: captures, forks, and a profiler of the program's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Either the program holds it, as often as it likes, or one window is open.

    Who holds it while a window is open waits until that is closed, which happens at once.
    """

    def __init__(self) -> None:
        self._window = threading.Lock()
        self._count = threading.Lock()
        self._holders: dict[object, str] = {}
        self._asked = threading.Event()

    @property
    def held_for(self) -> str:
        """What the program does that no window may see; "" where it does nothing of the kind."""
        return next(iter(list(self._holders.values())), "")

    def hold(self, key: object, doing: str) -> None:
        """Close the open window, and let no other open."""
        with self._count:
            self._holders[key] = doing
        self._asked.set()
        with self._window:
            pass

    def release(self, key: object) -> None:
        """Windows may open again, as far as this holder is concerned."""
        with self._count:
            self._holders.pop(key, None)

    @contextmanager
    def window(self) -> Iterator[bool]:
        """Whether a window may open now; it is open for the block."""
        with self._window:
            self._asked.clear()
            yield not self._holders

    def wait(self, seconds: float) -> None:
        """In an open window: until that time is over, or the program wants the gate."""
        self._asked.wait(seconds)
