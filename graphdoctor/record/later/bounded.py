"""Run a step with a time limit, without output, and without side effects outside the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType

from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.side_effects import LeavesStep, SideEffects
from graphdoctor.record.session import calls_inside
from graphdoctor.target.frames import locate_from
from graphdoctor.target.program.quiet import quiet
from graphdoctor.values.errors import UserCodeError

_MORE_LINES = 2_000
_TIMES_LINES = 4
_LEAST_S = 10.0  # less would end trials on a busy machine
_TIMES_SECONDS = 20


@contextmanager
def bounded(lines: LineTrace) -> Iterator[LineTrace]:
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
