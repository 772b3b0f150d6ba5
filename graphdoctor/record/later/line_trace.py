"""The user's lines that a run of the step executes, in order."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.target.frames import is_machinery, locate_from
from graphdoctor.values.locations import Location

_MOST_KEPT = 50_000
Line = tuple[CodeType, int]


class LineTrace:
    """Counts the user's lines of a run, and keeps them; ends a run of more than `most`."""

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self.seconds = 0.0
        self.codes: dict[CodeType, None] = {}
        self.lines: list[Line] = []
        self._most = most

    @contextmanager
    def counted(self) -> Iterator[None]:
        before, begun_s = sys.gettrace(), time.perf_counter()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            self.seconds = time.perf_counter() - begun_s

    def branch_to(self, other: LineTrace) -> Location | None:
        """The line after which another run continues at another line; None if the lines are the same."""
        pairs = zip(pairwise(self.lines), pairwise(other.lines), strict=False)
        for (line, following), (other_line, other_following) in pairs:
            if line == other_line and following != other_following:
                code, number = line
                return Location(code.co_filename, number, code.co_name)
        return None

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if is_machinery(frame.f_code.co_filename):
            return None
        if frame.f_code.co_filename == "<string>":  # a named tuple's, also graphdoctor's
            return None
        self.codes.setdefault(frame.f_code)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.count += 1
            self._keep(frame)
        elif event == "return":  # the rest of the caller's line runs next, such as its branch
            caller = frame.f_back
            while caller is not None and is_machinery(caller.f_code.co_filename):
                caller = caller.f_back
            if caller is not None:
                self._keep(caller)
        if self._most is not None and self.count > self._most:
            sys.settrace(None)
            raise LeavesStep(locate_from(frame).location)
        return self._line

    def _keep(self, frame: FrameType) -> None:
        if len(self.lines) < _MOST_KEPT:
            self.lines.append((frame.f_code, frame.f_lineno))
