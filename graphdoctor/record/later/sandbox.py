"""Run a step with a time limit, without output, and without side effects outside the process."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from graphdoctor.record.later.side_effects import LeavesStep, SideEffects
from graphdoctor.record.session import calls_inside
from graphdoctor.target.frames import is_machinery, locate_from
from graphdoctor.target.program.quiet import quiet
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.locations import Location

_MORE_LINES = 2_000
_TIMES_LINES = 4
_LEAST_S = 10.0  # less would end trials on a busy machine
_TIMES_SECONDS = 20


@contextmanager
def sandboxed(lines: LineTrace) -> Iterator[LineTrace]:
    """Limit the calls of a step in this block, by the lines and the time of an ordinary call.

    Raises `LeavesStep` for a call that takes far longer, writes outside the process, or exits.
    """
    seen = LineTrace(_TIMES_LINES * lines.count + _MORE_LINES)
    seconds = max(_LEAST_S, _TIMES_SECONDS * lines.seconds)
    ended = partial(_ended_after, seconds)  # the call alone: to restore gigabytes takes longer
    effects = SideEffects()  # knows the program's own streams, which `quiet` replaces
    with quiet(), calls_inside(ended, effects.refused, seen.counted):
        try:
            yield seen
        except UserCodeError as error:
            if isinstance(error.__cause__, LeavesStep):
                raise error.__cause__ from None
            if isinstance(error.__cause__, SystemExit):
                raise LeavesStep(None) from None
            raise


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End a run that waits or computes for longer, in the main thread and if no other alarm is set."""
    is_main = threading.current_thread() is threading.main_thread()
    has_timer = hasattr(signal, "setitimer")
    if not is_main or not has_timer or any(signal.getitimer(signal.ITIMER_REAL)):
        yield
        return
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        stack.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield


def _over(number: int, frame: FrameType | None) -> None:
    raise LeavesStep(locate_from(frame).location)


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
        before, begun_s, collects = sys.gettrace(), time.perf_counter(), gc.isenabled()
        gc.disable()  # a finalizer that the collector runs is no line of the step
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
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
