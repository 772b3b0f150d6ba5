"""Python's clocks: which calls read the time."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_SECONDS = (
    "time", "perf_counter", "monotonic", "process_time", "thread_time",
)  # fmt: skip
CLOCKS: dict[Any, str] = {
    getattr(time, f"{name}{unit}"): f"time.{name}{unit}()"
    for name in _SECONDS
    for unit in ("", "_ns")
    if hasattr(time, f"{name}{unit}")
} | {
    datetime.datetime.now: "datetime.now()",
    datetime.datetime.utcnow: "datetime.utcnow()",
}


@contextmanager
def clocks_an_hour_ahead() -> Iterator[None]:
    """Let functions of the module `time` return a time an hour later in this block."""
    space, originals = vars(time), {}
    for name in ("time", "monotonic", "perf_counter"):
        for unit, factor in (("", 1.0), ("_ns", 1e9)):
            originals[name + unit] = clock = space[name + unit]
            space[name + unit] = partial(_later, clock, type(clock())(3600 * factor))
    try:
        yield
    finally:
        space.update(originals)


def _later(clock: Callable[[], Any], ahead: Any) -> Any:
    return clock() + ahead
