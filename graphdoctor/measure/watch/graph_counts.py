"""The program's CUDA graphs -> how often each line captured one, and how often those were replayed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from graphdoctor.measure.watch.gate import Gate
from graphdoctor.measure.watch.replaced import replaced
from graphdoctor.target.frames import locate
from graphdoctor.values.locations import Location
from graphdoctor.values.watched import WatchedGraphs

_CAPTURING = "it captured a CUDA graph"
_FEW = 2  # replays of a line's graphs after which another capture there is one again


@dataclass(slots=True)
class _Line:
    """The graphs that one line captured. `replays += 1` needs no lock: no other thread runs within it."""

    location: Location | None
    captures: int = 0
    again: int = 0
    replays: int = 0
    last_capture_s: float = 0.0
    alive: dict[int, Any] = field(default_factory=dict)


class GraphCounts:
    """Counts calls of a graph type's methods while `on`. Windows stay closed during captures."""

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.perf_counter) -> None:
        self._gate = gate
        self._clock = clock
        self._start_s = clock()
        self._lines: dict[Location | None, _Line] = {}
        self._of: dict[int, _Line] = {}  # by the identity of a graph
        self.before_first: Callable[[], None] = lambda: None

    def read(self) -> tuple[WatchedGraphs, ...]:
        """The lines, those first whose graphs are replayed most."""
        lines = sorted(list(self._lines.values()), key=lambda line: (-line.replays, -line.captures))
        return tuple(
            WatchedGraphs(
                each.location, each.captures, each.again, len(each.alive), each.replays,
                each.last_capture_s,
            )
            for each in lines
        )  # fmt: skip

    def on(self, graph_type: Any) -> AbstractContextManager[None]:
        """Count while the block runs."""
        return replaced(
            graph_type,
            {
                "capture_begin": self._begins(graph_type.capture_begin),
                "capture_end": self._ends(graph_type.capture_end),
                "replay": self._replays(graph_type.replay),
            },
        )

    def _begins(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._lines:
                self.before_first()
            self._gate.hold(id(graph), _CAPTURING)
            try:
                begun = method(graph, *args, **kwargs)
            except BaseException:
                self._gate.release(id(graph))
                raise
            self._note(graph, locate(2).location)
            return begun

        return capture_begin

    def _ends(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(graph, *args, **kwargs)
            finally:
                self._gate.release(id(graph))

        return capture_end

    def _replays(self, method: Callable[..., Any]) -> Callable[..., Any]:
        of = self._of

        @functools.wraps(method)
        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            line = of.get(id(graph))
            if line is None:
                line = self._note(graph, None, is_capture=False)
            line.replays += 1
            return method(graph, *args, **kwargs)

        return replay

    def _note(self, graph: Any, location: Location | None, *, is_capture: bool = True) -> _Line:
        line = self._lines.setdefault(location, _Line(location))
        key = id(graph)
        before = self._of.get(key)
        if is_capture:
            line.captures += 1
            line.again += line.replays >= _FEW
            line.last_capture_s = self._clock() - self._start_s
        if before is not None and before is not line:
            before.alive.pop(key, None)
        self._of[key] = line
        line.alive[key] = ref(graph, functools.partial(self._forget, key))
        return line

    def _forget(self, key: int, dead: object) -> None:
        line = self._of.get(key)
        if line is not None and line.alive.get(key) is dead:
            del line.alive[key], self._of[key]
