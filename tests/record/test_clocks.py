"""A step that decides by a clock: at each second of a minute, by what it timed, and wherever it keeps the clock."""

from __future__ import annotations

import datetime
import time
import timeit
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.record.host.clocks import clocks_ahead
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
WALL, STEADY, TIMED = time.time(), time.monotonic(), timeit.default_timer()
CLOCKS = {"wall": time.time}


class Kept:
    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now = time.monotonic
        self.slow = 0


KEPT = Kept()


def kept_in(clock: Callable[[], float]) -> Callable[[], bool]:
    return lambda: clock() - STEADY > 3600


def by_default(now: Callable[[], float] = time.time) -> bool:
    return now() - WALL > 3600


def slow_steps() -> bool:
    begun = time.perf_counter()
    KEPT.slow += time.perf_counter() - begun > 60
    return KEPT.slow > 3


def over_budget() -> bool:
    begun = time.perf_counter()
    return time.perf_counter() - begun > 60


DECIDING = {
    "second": lambda: int(time.time()) % 60 == BEGUN_SECOND,
    "minute": lambda: datetime.datetime.now().minute == BEGUN_MINUTE,
    "budget": over_budget,
    "slow steps": slow_steps,
    "attribute": lambda: KEPT.now() - STEADY > 3600,
    "class": lambda: KEPT.clock() - STEADY > 3600,
    "default": by_default,
    "closure": kept_in(time.monotonic),
    "dictionary": lambda: CLOCKS["wall"]() - WALL > 3600,
    "timeit": lambda: timeit.default_timer() - TIMED > 3600,
}
_THEN = time.localtime(time.time() + 1800)
BEGUN_SECOND, BEGUN_MINUTE = (int(time.time()) + 30) % 60, _THEN.tm_min


@pytest.mark.parametrize("kind", DECIDING)
def test_a_clock_that_decides_is_a_doubt(kind: str) -> None:
    decides = DECIDING[kind]

    def step(x: torch.Tensor) -> torch.Tensor:
        return LINEAR(x) * 2 if decides() else LINEAR(x)

    report = reported(step)
    assert report.verdict == "unknown" and "at a later time" in report.reason
    assert KEPT.now is time.monotonic and Kept.clock is time.monotonic
    assert CLOCKS["wall"] is time.time and by_default.__defaults__ == (time.time,)


class Timer:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.total = clock, 0.0

    def __enter__(self) -> None:
        self.begun = self.clock()

    def __exit__(self, *exc_info: Any) -> None:
        self.total += self.clock() - self.begun


def test_a_clock_that_is_kept_and_only_times_is_none() -> None:
    timer = Timer()

    def step(x: torch.Tensor) -> torch.Tensor:
        with timer:
            return LINEAR(x)  # type: ignore[no-any-return]

    report = reported(step)
    assert report.verdict == "safe", report.reason


THEN = time.gmtime(10**6)


@pytest.mark.parametrize(
    ("ask", "then"),
    [
        (lambda *at: time.localtime(*at).tm_year, 10**6),
        (lambda *at: time.gmtime(*at).tm_year, 10**6),
        (lambda *at: int(time.ctime(*at)[-4:]), 10**6),
        (lambda *at: int(time.asctime(*at)[-4:]), THEN),
        (lambda *at: int(time.strftime("%Y", *at)), THEN),
    ],
    ids=["localtime", "gmtime", "ctime", "asctime", "strftime"],
)
def test_a_clock_of_the_day_tells_a_later_now_and_another_time_as_it_is(
    ask: Callable[..., int], then: Any
) -> None:
    now = ask()
    with clocks_ahead({}, 400 * 86_400.0):
        assert ask() > now and ask(then) == 1970
    assert ask() <= now + 1
