"""A process that is only there for an analysis -> less time spent on fresh memory and on garbage.

Never the user's own process, but while a model in it is studied: how a program gets its memory, and when what it
leaves is collected, may be what somebody looks at there.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
# Larger blocks go back to the system at once, whole; a step has few of them, and a hole of that size would cost most.
_LARGEST_KEPT_BYTES = 32 << 20
_LEFT_FREE_BYTES = 256 << 20
_RARELY = 50_000  # new objects; 700 to 2,000 by default


def be_thrifty() -> None:
    """Call it once, where the process begins."""
    _keep_what_is_freed()
    atexit.register(gc.freeze)  # nobody needs to look for garbage once the interpreter ends


def _keep_what_is_freed() -> None:
    """Let glibc use freed blocks again, where it would give them back and take fresh ones, page by page.

    By itself it does so with twice the largest block that it ever took from the system and got back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl and macOS have none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _LEFT_FREE_BYTES)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """While modules are imported, or a model is made or studied: what that makes stays, and is no garbage."""
    before = gc.get_threshold()
    if before[0]:  # else nothing is collected at all
        gc.set_threshold(max(_RARELY, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
