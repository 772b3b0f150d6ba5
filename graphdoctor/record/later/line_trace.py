"""A run of the step -> how many lines of the user's it has, and which branches it takes from some of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from graphdoctor.record.host.lines import Line
from graphdoctor.record.later.side_effects import LeavesStep
from graphdoctor.target.frames import is_machinery, locate_from

Branch = tuple[Line, int, int]  # from an instruction of that line to the one that came next


class LineTrace:
    """How many lines of the user's a run has, and which code they are of; ends one with far too many.

    Of lines that decide it notes the branches that were taken, by instructions: both may stand in one line.
    """

    def __init__(self, most: int | None = None, deciding: Set[Line] = frozenset()) -> None:
        self.count = 0
        self.seconds = 0.0
        self.codes: dict[CodeType, None] = {}
        self.deciding = deciding
        self.branches: set[Branch] = set()
        self._other_branches: dict[
            Branch, int
        ] = {}  # of runs that did the same, so many steps later
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

    def did_the_same(self, run: LineTrace, steps: int) -> None:
        """Another run, from a state so many steps later, took these branches, and nothing else came of it."""
        # Another branch than none is not another one.
        left = {(line, instruction) for line, instruction, _ in self.branches}
        for branch in run.branches - self.branches:
            if branch[:2] in left:
                self._other_branches.setdefault(branch, steps)

    def other_branch_at(self, line: Line) -> int | None:
        """Where a run that did the same took another branch there: so many steps later."""
        return next((steps for one, steps in self._other_branches.items() if one[0] == line), None)

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

        def traced(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal last
            if event == "opcode":
                if last is not None:
                    self.branches.add((*last, frame.f_lasti))
                line = Line(frame.f_code, frame.f_lineno)
                last = (line, frame.f_lasti) if line in self.deciding else None
            self._line(frame, event, arg)
            return traced

        frame.f_trace = traced  # first: from Python 3.13 on this call has no instructions otherwise
        frame.f_trace_opcodes = True
        return traced
