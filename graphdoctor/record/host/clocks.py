"""Python's clocks: which there are, and all of them set forward for a while."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

from graphdoctor.record.host.replaced_names import standing_in

_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S
# So far ahead that whatever waits is over; and each hour of a day, each day of a week, and each minute of an hour
# and second of a minute after that.
FAR_AHEAD_S = 30 * _DAY_S
AT_OTHER_TIMES_S = (
    *(FAR_AHEAD_S + hour * _HOUR_S for hour in range(1, 24)),
    *(FAR_AHEAD_S + day * _DAY_S for day in range(1, 7)),
    *(FAR_AHEAD_S + minute * (_MINUTE_S + 1) for minute in range(1, 60)),
)
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


def tells_of_day(name: str) -> bool:
    """Whether a clock, by its name in `CLOCKS`, is asked for a date or for the time of the day."""
    return name.startswith(
        ("date", NUMPY_CLOCK, *(f"time.{clock.__name__}" for clock in _OF_DAY), "time.time(")
    )


@contextmanager
def clocks_ahead(
    roots: Mapping[str, object], ahead_s: float, *, each_time: bool = False
) -> Iterator[None]:
    """In this block code that the roots lead to reads another time, by whatever name it knows the clock.

    `each_time`: so far ahead of the last time that it was read, as if all that it times took so long.
    """
    modules = [time, datetime, *(one for name in ("timeit",) if (one := sys.modules.get(name)))]
    ahead = _Ahead(ahead_s, each_time)
    others = _later_clocks(ahead)
    if (numpy := sys.modules.get("numpy")) is not None:
        modules.append(numpy)
        others[id(numpy.datetime64)] = _later_datetime64(numpy.datetime64, ahead)
    with standing_in(roots, others, *modules):
        yield


class _Ahead:
    """How many seconds a clock that is read now is ahead."""

    def __init__(self, ahead_s: float, each_time: bool) -> None:
        self._ahead_s, self._each_time = ahead_s, each_time
        self._times = 0

    def seconds(self) -> float:
        self._times += 1
        return self._ahead_s * (self._times if self._each_time else 1)


def reads_numpy_clock(code: CodeType) -> bool:
    """Whether a function says `datetime64("now")`, the one clock that is no function."""
    return "datetime64" in code.co_names and not _NOW_WORDS.isdisjoint(
        one for one in code.co_consts if isinstance(one, str)
    )


def _later_datetime64(kind: Any, ahead: _Ahead) -> Any:
    def make(cls: type, *args: Any) -> Any:
        found = kind(*args)
        is_now = bool(args) and isinstance(args[0], str) and args[0] in _NOW_WORDS
        unit = "D" if is_now and args[0] == "today" else "s"
        if not is_now:
            return found
        ahead_s = int(ahead.seconds())
        return found + (found - found).dtype.type(
            ahead_s // _DAY_S if unit == "D" else ahead_s, unit
        )

    return type("datetime64", (kind,), {"__new__": make})


def _later_clocks(ahead: _Ahead) -> dict[int, object]:
    """What stands in for each clock, by its identity."""
    of_seconds = {
        id(clock): partial(_read_ahead, clock, ahead, 10**9 if name.endswith("_ns()") else 1)
        for clock, name in CLOCKS.items()
        if name.startswith("time.") and clock not in _OF_DAY
    }
    of_day = {id(clock): partial(_of_day_ahead, clock, ahead) for clock in _OF_DAY}
    of_now = {"ahead": ahead}
    return {
        **of_seconds,
        **of_day,
        id(datetime.datetime): type("datetime", (_LaterDatetime,), of_now),
        id(datetime.date): type("date", (_LaterDate,), of_now),
    }


def _read_ahead(clock: Callable[..., Any], ahead: _Ahead, unit: int, *args: Any) -> Any:
    now = clock(*args)
    return now + type(now)(ahead.seconds() * unit)


def _of_day_ahead(clock: Callable[..., Any], ahead: _Ahead, *args: Any) -> Any:
    if len(args) > _OF_DAY[clock]:  # another time than now
        return clock(*args)
    seconds = _TIME() + ahead.seconds()
    return clock(*args, seconds if clock in (_LOCAL, _UTC, _CTIME) else _LOCAL(seconds))


class _LaterDatetime(datetime.datetime):
    ahead: _Ahead

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _NOW(tz) + datetime.timedelta(seconds=cls.ahead.seconds())

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


class _LaterDate(datetime.date):
    ahead: _Ahead

    @classmethod
    def today(cls) -> Any:
        return (_NOW() + datetime.timedelta(seconds=cls.ahead.seconds())).date()


_NOW, _TIME = datetime.datetime.now, time.time
_LOCAL, _UTC, _CTIME = time.localtime, time.gmtime, time.ctime
