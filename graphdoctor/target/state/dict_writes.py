"""Whether any of all watched dictionaries was written to since, in one question: hundreds are told apart only then.

Since Python 3.12 torch watches the dictionaries whose versions it is asked for, and numbers the writes into them
one after the other, whichever it is. So a write into a dictionary of ours has the next number where nothing else
was written to. Before, Python numbers the writes into all dictionaries there are, and one comes with nearly every call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

Version = Callable[[dict[Any, Any]], int]
_NO_SMALL_INTEGER = 1_000  # those are one object each


def write_counter(version: Version) -> Callable[[], int]:
    """A function whose answer is another one after each write into a dictionary whose version was asked for.

    It may be another one after none. Two threads may ask at once: whichever comes second finds a gap.
    """
    own = {"written": 0}
    last = found = version(own)

    def writes() -> int:
        nonlocal last, found
        own["written"] = last + _NO_SMALL_INTEGER  # always a new object: the same one is no write
        now = version(own)
        if now != last + 1:
            found = now
        last = now
        return found

    return writes


@cache
def shared_counter(version: Version) -> Callable[[], int] | None:
    """The process's own, since each counter's writes are news to any other; None where this Python has none."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None  # two writes at a time may get one number
    counter = write_counter(version)
    return counter if _tells(counter, version) else None


def _tells(counter: Callable[[], int], version: Version) -> bool:
    """Whether it rests while nothing watched is written to, and notices what is."""
    watched: dict[str, int] = {"one": 1}
    version(watched)
    before = counter()
    unwatched: dict[str, int] = {}
    for number in range(3):
        unwatched[str(number)] = number
        if counter() != before:
            return False
    writes = (lambda: watched.update(one=2), lambda: watched.setdefault("two", 2), watched.clear)
    for write in writes:
        write()
        before, now = counter(), before
        if now == before:
            return False
    return counter() == before
