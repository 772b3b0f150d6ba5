"""Python's clocks, and NumPy's: which calls read the time."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

NUMPY_CLOCK = "numpy.datetime64()"
_NOW_WORDS = frozenset({"now", "today"})
_SECONDS = (
    "time", "perf_counter", "monotonic", "process_time", "thread_time",
)  # fmt: skip
# They tell the time of now where they are called with so many arguments.
_OF_DAY: dict[Any, int] = {
    time.localtime: 0,
    time.gmtime: 0,
    time.ctime: 0,
    time.asctime: 0,
    time.strftime: 1,
}
CLOCKS: dict[Any, str] = {
    getattr(time, f"{name}{unit}"): f"time.{name}{unit}()"
    for name in _SECONDS
    for unit in ("", "_ns")
    if hasattr(time, f"{name}{unit}")
} | {
    datetime.datetime.now: "datetime.now()",
    datetime.datetime.utcnow: "datetime.utcnow()",
    datetime.datetime.today: "datetime.today()",
    datetime.date.today: "date.today()",
    **{clock: f"time.{clock.__name__}()" for clock in _OF_DAY},
}
for _name in ("clock_gettime", "clock_gettime_ns"):
    if hasattr(time, _name):  # not on every system
        CLOCKS[getattr(time, _name)] = f"time.{_name}()"


def reads_numpy_clock(code: CodeType) -> bool:
    """Whether a function says `datetime64("now")`, the one clock that is no function."""
    return "datetime64" in code.co_names and not _NOW_WORDS.isdisjoint(
        one for one in code.co_consts if isinstance(one, str)
    )


@contextmanager
def clocks_ahead(ahead_s: float) -> Iterator[None]:
    """Let functions of the module `time` return a later time in this block."""
    space, originals = vars(time), {}
    for name in ("time", "monotonic", "perf_counter"):
        for unit, factor in (("", 1.0), ("_ns", 1e9)):
            originals[name + unit] = clock = space[name + unit]
            space[name + unit] = partial(_later, clock, type(clock())(ahead_s * factor))
    try:
        yield
    finally:
        space.update(originals)


def _later(clock: Callable[[], Any], ahead: Any) -> Any:
    return clock() + ahead
