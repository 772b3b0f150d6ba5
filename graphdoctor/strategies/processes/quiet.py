"""A process that has compiled -> one that does nothing beside the step while that is timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """End what compilers left running, and keep what they left lying out of garbage collections.

    Inductor's workers start up in the background and go on long after the last kernel is compiled:
    beside them eager took twice its time on an H200.
    """
    _end_compile_workers()
    gc.collect()
    is_ours = gc.get_freeze_count() == 0  # else the user froze something, which stays frozen
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


def _end_compile_workers() -> None:
    """Where inductor was never imported there are none; a later compilation starts new ones."""
    pools = sys.modules.get("torch._inductor.async_compile")
    end = getattr(pools, "shutdown_compile_workers", None)
    if end is not None:
        end()
