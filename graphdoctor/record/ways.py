"""A run of the step -> how many lines of the user's it has, and which ways it goes from some of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from graphdoctor.record.outward import LeavesStep
from graphdoctor.target.frames import is_machinery, locate_from


class Line(NamedTuple):
    """A line of code that decides something."""

    code: CodeType
    number: int


Way = tuple[Line, int, int]  # from an instruction of that line to the one that came next


class Lines:
    """How many lines of the user's a run has, and which code they are of; ends one with far too many.

    Of lines that decide it notes the ways that were gone, by instructions: both may stand in one line.
    """

    def __init__(self, most: int | None = None, deciding: Set[Line] = frozenset()) -> None:
        self.count = 0
        self.seconds = 0.0
        self.codes: dict[CodeType, None] = {}
        self.deciding = deciding
        self.ways: set[Way] = set()
        self._other_ways: dict[Way, int] = {}  # of runs that did the same, so many steps later
        self._most = most
        self._watched = {line.code for line in deciding}

    @contextmanager
    def counted(self) -> Iterator[None]:
        before, begun_s = sys.gettrace(), time.perf_counter()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            self.seconds = time.perf_counter() - begun_s

    def did_the_same(self, run: Lines, steps: int) -> None:
        """Another run, from a state so many steps later, went its ways, and nothing else came of it."""
        for way in run.ways - self.ways:
            self._other_ways.setdefault(way, steps)

    def other_way_at(self, line: Line) -> int | None:
        """Where a run that did the same went another way from there: so many steps later."""
        return next((steps for way, steps in self._other_ways.items() if way[0] == line), None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if is_machinery(frame.f_code.co_filename):
            return None
        if frame.f_code.co_filename == "<string>":  # a named tuple's, also graphdoctor's
            return None
        self.codes.setdefault(frame.f_code)
        return self._instructions_of(frame) if frame.f_code in self._watched else self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self.count += event == "line"
        if self._most is not None and self.count > self._most:
            sys.settrace(None)
            raise LeavesStep(locate_from(frame).location)
        return self._line

    def _instructions_of(self, frame: FrameType) -> Callable[..., Any]:
        last: tuple[Line, int] | None = None
        frame.f_trace_opcodes = True

        def traced(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal last
            if event == "opcode":
                if last is not None:
                    self.ways.add((*last, frame.f_lasti))
                line = Line(frame.f_code, frame.f_lineno)
                last = (line, frame.f_lasti) if line in self.deciding else None
            self._line(frame, event, arg)
            return traced

        return traced
