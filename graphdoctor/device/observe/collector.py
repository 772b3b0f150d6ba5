"""Python's garbage collector, which destroys what only cycles hold at any moment -> not while something runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
