"""Finds iterators and queues that outlive a step and from which it takes something.

A replay takes nothing, and nobody can put back what was taken: how the next item differs is not known.
"""

from __future__ import annotations

import builtins
import io
import itertools
import queue
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FrameType, FunctionType, GeneratorType
from typing import Any
from weakref import ProxyTypes

from graphdoctor.target.program.saved_steps import GivenAgain
from graphdoctor.target.state.attributes import STREAMS, has_walkable_state
from graphdoctor.target.state.walk import Walk

_QUEUES = {queue.Queue.get.__code__}
FILES_OF_QUEUES = frozenset(code.co_filename for code in _QUEUES)
TAKEN_FROM = (queue.SimpleQueue,)  # by functions in C
_MOST_PARTS = 200  # of what an iterator tells of itself


class Running:
    """The iterators that the roots lead to, where they stand, and calls that move one on."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._held: dict[int, tuple[str, Iterator[object]]] = {}
        for path, value, _ in Walk(roots):
            if _is_running(value):
                self._held.setdefault(id(value), (str(path), value))  # type: ignore[arg-type]
        self._before = {key: position(held) for key, (_, held) in self._held.items()}

    def taken_in_call(self, frame: FrameType) -> str | None:
        """The name of what a function that begins takes from: a generator, a class with `__next__`, a queue."""
        if frame.f_code in _QUEUES:
            return "a queue"
        if frame.f_code.co_name == "__next__":
            return self.path(frame.f_locals.get("self"))
        for path, held in self._held.values():
            if isinstance(held, GeneratorType) and held.gi_frame is frame:
                return path
        return None

    def taken_by_built_in(self, function: Any) -> str | None:
        """The same of a function in C: for `next()`, those iterators whose position nobody can read."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, queue.SimpleQueue) and function.__name__ in ("get", "get_nowait"):
            return "a queue"
        if function is builtins.next:
            for key, (path, held) in self._held.items():
                # A cycle is where it was once it has come round, as one of a single item always is.
                is_hidden = self._before[key] is None or isinstance(held, itertools.cycle)
                if is_hidden and not isinstance(held, GeneratorType):
                    return path
        return None

    def moved(self) -> Iterator[str]:
        """Those whose position is another one than in the beginning."""
        for key, (path, held) in self._held.items():
            before = self._before[key]
            # As in a loop, which calls `__next__` of a class in C unseen.
            is_python = isinstance(getattr(type(held), "__next__", None), FunctionType)
            is_unseen = before is None and not isinstance(held, GeneratorType) and not is_python
            if is_unseen or position(held) != before:
                yield path

    def path(self, held: object) -> str | None:
        """What leads to it, if it outlives the step."""
        return self._held[id(held)][0] if id(held) in self._held else None


def _is_running(value: object) -> bool:
    """Not an object of the user's, whose attributes are state like any other, and no file that is written to."""
    if isinstance(value, (GeneratorType, GivenAgain)):
        return True
    if type(value) in ProxyTypes:  # has each method, as tqdm's of its bar
        return False
    if not isinstance(value, Iterator) or isinstance(value, STREAMS):
        return False
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable()
    return not has_walkable_state(value) and type(value).__module__ != "tempfile"


def position(iterator: object) -> object:
    """Something that differs where the iterator has moved on; None where it does not tell."""
    return _position(iterator, iter(range(_MOST_PARTS)))


def _position(iterator: object, left: Iterator[int]) -> object:
    if isinstance(iterator, GeneratorType):
        return None
    if isinstance(iterator, io.IOBase):
        with suppress(OSError):  # somebody has asked it for its next line
            return iterator.tell()
        return None
    if type(iterator).__name__ == "count":
        return repr(iterator)
    if type(iterator).__reduce__ is object.__reduce__:  # what every object has, and says nothing
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of itertools will not tell any more
            state = iterator.__reduce__()
    except Exception:
        return None
    return _plain(state[1:], left) if isinstance(state, tuple) else None


def _plain(state: object, left: Iterator[int]) -> object:
    if next(left, None) is None:
        return object()  # it is not known to stand where it stood
    if isinstance(state, (tuple, list)):
        # No identity: an iterator gives another tuple each time it is asked.
        return len(state), *(_plain(each, left) for each in state[-8:])
    if isinstance(state, Iterator):
        return _position(state, left)
    # A range is another one each time it is asked, too: Python 3.12 and newer tell what is left of it.
    return state if isinstance(state, (int, float, str, bool, range, type(None))) else id(state)
