"""Iterators and queues that outlive a step -> which of them a step takes something from.

A replay takes nothing, and nobody can put back what was taken: how the next item differs is not known.
"""

from __future__ import annotations

import builtins
import io
import itertools
import queue
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType, GeneratorType
from typing import Any

from graphdoctor.target.state.attributes import has_walkable_state
from graphdoctor.target.state.walk import BUILTIN_CONTAINERS, Walk

_QUEUES = {queue.Queue.get.__code__}
_DEPTH = 4


class Running:
    """The iterators that the roots lead to, where they stand, and calls that move one on."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._held: dict[int, tuple[str, Iterator[object]]] = {}
        self._streams: dict[int, str] = {}
        for path, value, _ in Walk(roots, with_empty=False):
            if isinstance(value, (io.BytesIO, io.StringIO)):
                self._streams[id(value)] = path
            if _is_running(value):
                self._held.setdefault(id(value), (path, value))  # type: ignore[arg-type]
        self._before = {key: position(held) for key, (_, held) in self._held.items()}

    def taken_in_call(self, frame: FrameType) -> str | None:
        """The name of what a function that begins takes from: a generator, a class with `__next__`, a queue."""
        if frame.f_code in _QUEUES:
            return "a queue"
        if frame.f_code.co_name == "__next__":
            return self._path(frame.f_locals.get("self"))
        for path, held in self._held.values():
            if isinstance(held, GeneratorType) and held.gi_frame is frame:
                return path
        return None

    def taken_by_built_in(self, function: Any) -> str | None:
        """The same of a function in C: for `next()`, those iterators whose position nobody can read."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, queue.SimpleQueue) and function.__name__ in ("get", "get_nowait"):
            return "a queue"
        if isinstance(owner, (io.BytesIO, io.StringIO)) and function.__name__.startswith("read"):
            return self._streams.get(id(owner))
        if function is builtins.next:
            hidden = (
                path for key, (path, held) in self._held.items() if self._is_hidden(key, held)
            )
            return next(hidden, None)
        return None

    def moved(self) -> Iterator[str]:
        """Those whose position is another one than in the beginning."""
        for key, (path, held) in self._held.items():
            before = self._before[key]
            if before is not None and position(held) != before:
                yield path

    def _is_hidden(self, key: int, held: Iterator[object]) -> bool:
        """A cycle stands where it stood once it has come round, as one of a single item always does."""
        is_told = self._before[key] is not None and not isinstance(held, itertools.cycle)
        return not is_told and not isinstance(held, GeneratorType)

    def _path(self, held: object) -> str | None:
        return self._held[id(held)][0] if id(held) in self._held else None


def _is_running(value: object) -> bool:
    """Not an object of the user's, whose attributes are state like any other, and no file."""
    if type(value) in BUILTIN_CONTAINERS or not isinstance(value, Iterator):
        return False
    return not has_walkable_state(value) and type(value).__module__ not in ("_io", "tempfile")


def position(iterator: object, depth: int = _DEPTH) -> object:
    """Something that differs where the iterator has moved on; None where it does not tell."""
    if isinstance(iterator, GeneratorType) or depth == 0:
        return None
    if type(iterator).__name__ == "count":
        return repr(iterator)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of itertools will not tell any more
            state = iterator.__reduce__()
    except Exception:
        return None
    return _plain(state[1:], depth) if isinstance(state, tuple) else None


def _plain(state: object, depth: int) -> object:
    if isinstance(state, (tuple, list)) and depth > 0:
        return len(state), *(_plain(each, depth - 1) for each in state[-8:])
    if isinstance(state, Iterator):
        return position(state, depth - 1)
    return state if isinstance(state, (int, float, str, bool, type(None))) else id(state)
