"""What a process waits for before it works -> when its time began; the end of its input: it is not needed."""

from __future__ import annotations

import os
import time

BEFORE_THE_END_S = 1.0  # a process whose time is nearly over writes down where it is
_STDIN = 0
_MOST_BYTES = 64


def begun_now() -> bytes:
    """What opens a gate: the time, in seconds since the epoch."""
    return f"{time.time()!r}\n".encode()


def wait_at_gate() -> float | None:
    """When the time began, as whoever opened the gate says; None where nobody will.

    Whoever opens it closes it behind: a model that reads its input finds nothing more there.
    """
    told = os.read(_STDIN, _MOST_BYTES)
    return float(told) if told else None
