"""A profile function of Python's -> not called for what happens while an operator is dispatched.

A dispatched operator makes more than a hundred events for a profile function, and none of them is the step's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ProfileFunction = Callable[[FrameType, str, Any], object]
_installed: list[ProfileFunction] = []


@contextmanager
def profiling(function: ProfileFunction) -> Iterator[None]:
    """Let a function see the calls of this thread in the block, but none inside of operators."""
    before = sys.getprofile()
    _installed.append(function)
    sys.setprofile(function)
    try:
        yield
    finally:
        profile_by(before)
        _installed.remove(function)


def paused() -> ProfileFunction | None:
    """Take such a function off this thread, and return it for `sys.setprofile` to put it back."""
    if _installed:
        now = sys.getprofile()  # another thread's, or the user's, stays
        for function in _installed:
            if function is now:
                sys.setprofile(None)
                return function
    return None


def profile_by(before: Any) -> None:
    """Put back what profiled. cProfile's hook is in C, which only the profiler itself can set."""
    if before is None or callable(before):
        sys.setprofile(before)
        return
    sys.setprofile(None)
    before.enable()
