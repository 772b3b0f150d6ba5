"""Python's clocks: which there are, and all of them set forward for a while."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file

_AHEAD_S = 30 * 24 * 3600
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
    datetime.datetime.today: "datetime.today()",
    datetime.date.today: "date.today()",
}
for _name in ("clock_gettime", "clock_gettime_ns"):
    if hasattr(time, _name):  # not on every system
        CLOCKS[getattr(time, _name)] = f"time.{_name}()"


@contextmanager
def clocks_ahead(roots: Mapping[str, object]) -> Iterator[None]:
    """In this block code that the roots lead to reads another time, by whatever name it knows the clock."""
    later = _later_clocks()
    spaces: list[dict[str, Any]] = [vars(time), vars(datetime)]
    for _, value, _ in Walk(roots, with_empty=False):
        if isinstance(value, FunctionType) and is_user_file(value.__code__.co_filename):
            spaces.append(value.__globals__)
    changed: list[tuple[dict[str, Any], str, object]] = []
    try:
        for space in spaces:
            for name, value in list(space.items()):
                if (put := later.get(id(value))) is not None:
                    changed.append((space, name, value))
                    space[name] = put
        yield
    finally:
        for space, name, value in changed:
            space[name] = value


def _later_clocks() -> dict[int, object]:
    """What stands in for each clock, by its identity."""
    found: dict[int, object] = {
        id(clock): partial(_ahead, clock, 10**9 if name.endswith("_ns()") else 1)
        for clock, name in CLOCKS.items()
        if name.startswith("time.")
    }
    return found | {id(datetime.datetime): _LaterDatetime, id(datetime.date): _LaterDate}


def _ahead(clock: Callable[..., Any], unit: int, *args: Any) -> Any:
    return clock(*args) + _AHEAD_S * unit


class _LaterDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _NOW(tz) + datetime.timedelta(seconds=_AHEAD_S)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


class _LaterDate(datetime.date):
    @classmethod
    def today(cls) -> Any:
        return _NOW().date() + datetime.timedelta(seconds=_AHEAD_S)


_NOW = datetime.datetime.now
