"""A run that nobody is to notice: it does not take for ever, shows nothing, and leaves no trace outside the process."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from types import FrameType

from graphdoctor.record.host.loggers import is_plain_stream
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.side_effects import Inside, LeavesStep
from graphdoctor.record.session import calls_inside
from graphdoctor.target.frames import locate_from
from graphdoctor.target.program.quiet import quiet
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.locations import Location

_MORE_LINES = 2_000
_TIMES_LINES = 4
_LEAST_S = 2.0
_TIMES_SECONDS = 20


@contextmanager
def bounded(lines: LineTrace) -> Iterator[LineTrace]:
    """In this block a step of such lines neither lasts for very long, nor prints, nor writes files, nor ends all."""
    seen = LineTrace(_TIMES_LINES * lines.count + _MORE_LINES, lines.deciding)
    seconds = max(_LEAST_S, _TIMES_SECONDS * lines.seconds)
    ended = partial(ended_after, seconds)  # the call alone: to put back gigabytes takes longer
    standard = ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr))
    redirects = [redirect for redirect, stream in standard if not is_plain_stream(stream)]
    with quiet(), calls_inside(ended, Inside(redirects).only, seen.counted):
        try:
            yield seen
        except UserCodeError as error:
            if isinstance(error.__cause__, LeavesStep):
                raise error.__cause__ from None
            if isinstance(error.__cause__, SystemExit):
                raise LeavesStep(_raised_at(error.__cause__)) from None
            raise


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End a run that waits or computes for longer, where Python looks for signals, and one that interrupts itself.

    Only in the main thread, and where nobody else has set the alarm.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_asked = False  # by a person, who pressed Ctrl-C

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        raise KeyboardInterrupt

    with ExitStack() as stack:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            stack.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGINT, interrupted)
        if hasattr(signal, "setitimer") and not any(signal.getitimer(signal.ITIMER_REAL)):
            stack.callback(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, _over)
            signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        except KeyboardInterrupt as error:
            if is_asked:
                raise
            raise LeavesStep(_raised_at(error)) from None


def _over(number: int, frame: FrameType | None) -> None:
    raise LeavesStep(locate_from(frame).location)


def _raised_at(error: BaseException) -> Location | None:
    """The user's line that an error comes from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return locate_from(trace.tb_frame).location if trace is not None else None
