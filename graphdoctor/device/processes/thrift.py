"""Spend less time on fresh memory and garbage in a process that only runs one analysis.

Never the user's own process, but while a model in it is studied: how a program gets its memory, and when what it
leaves is collected, may be what somebody looks at there.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
# Larger blocks go back to the system at once, whole; a step has few of them, and a hole of that size would cost most.
_LARGEST_KEPT_BYTES = 32 << 20
_LEFT_FREE_BYTES = 256 << 20
_RARELY = 50_000  # new objects; 700 to 2,000 by default


def be_thrifty() -> None:
    """Call it once, where the process begins."""
    # Let glibc use freed blocks again, where it would give them back and take fresh ones, page
    # by page.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl and macOS have none
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _LEFT_FREE_BYTES)
    atexit.register(leave_garbage)


def give_memory_back() -> None:
    """Give what was freed to the system, before another process needs as much: glibc keeps blocks of up to 32 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl and macOS have none
    if trim is not None:
        trim(0)


def leave_garbage() -> None:
    """Nobody needs to look for garbage once the interpreter ends.

    Extensions made with nanobind do, Triton's among them: each of their objects that is still there is a line on
    stderr.
    """
    if not any(map(_is_of_nanobind, list(sys.modules.values()))):
        gc.freeze()


def _is_of_nanobind(module: object) -> bool:
    # Not by attributes: a lazy module would import what is asked for.
    there = getattr(module, "__dict__", {})
    is_extension = str(there.get("__file__")).endswith((".so", ".pyd"))
    return is_extension and any(type(v).__module__ == "nanobind" for v in there.values())


_lock = threading.Lock()
# The thresholds before the first block that is still open, once for each.
_raised: list[tuple[int, ...]] = []


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """While modules are imported, or a model is made or studied: what that makes stays, and is no garbage.

    Blocks of several threads may overlap: the last one that ends puts back what was there before the first.
    """
    with _lock:
        before = _raised[0] if _raised else gc.get_threshold()
        _raised.append(before)
        if before[0]:  # else nothing is collected at all
            gc.set_threshold(max(_RARELY, before[0]), *before[1:])
    try:
        yield
    finally:
        with _lock:
            _raised.pop()
            if not _raised:
                gc.set_threshold(*before)
