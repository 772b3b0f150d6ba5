"""Profile functions of Python that are paused while torch dispatches an operator.

The dispatch of one operator causes more than a hundred profile events, all of them from code of torch and graphdoctor.
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
    before: Any = sys.getprofile()
    _installed.append(function)
    sys.setprofile(function)
    try:
        yield
    finally:
        # cProfile's hook is in C, which only the profiler itself can set.
        is_of_python = before is None or callable(before)
        sys.setprofile(before if is_of_python else None)
        if not is_of_python:
            before.enable()
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
