"""A run that nobody is to notice: it does not take for ever, interrupts nobody, and what it shows is not seen."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from graphdoctor.record.outward import LeavesStep
from graphdoctor.target.frames import locate_from
from graphdoctor.values.locations import Location


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
            raise LeavesStep(raised_at(error)) from None


def _over(number: int, frame: FrameType | None) -> None:
    raise LeavesStep(locate_from(frame).location)


def raised_at(error: BaseException) -> Location | None:
    """The user's line that an error comes from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return locate_from(trace.tb_frame).location if trace is not None else None


@contextmanager
def silent() -> Iterator[None]:
    """What goes to the standard streams meets nobody, whoever holds them: a progress bar, or code in C."""
    streams = [one for one in (sys.stdout, sys.stderr) if one is not None]
    _flush(streams)
    with ExitStack() as stack:
        for descriptor in (1, 2):
            with suppress(OSError):  # it is closed
                kept = os.dup(descriptor)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, descriptor)
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), descriptor)
        stack.callback(_flush, streams)
        yield


def _flush(streams: list[object]) -> None:
    for stream in streams:
        with suppress(Exception):  # a stream of the user's
            stream.flush()  # type: ignore[attr-defined]
