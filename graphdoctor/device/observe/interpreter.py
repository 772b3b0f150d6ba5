"""Pauses the interpreter's garbage collector and profile functions where they would disturb what runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def no_collection() -> Iterator[None]:
    """Let the collector run no finalizer in the block.

    CUDA ends a capture in which an earlier graph is destroyed (pytorch#161037), and observers of a capture
    make so many objects that the collector runs more often than without them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
