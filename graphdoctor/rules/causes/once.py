"""A function of a recording in, the same function computed once for each recording out."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from graphdoctor.values.recording import Recording

Result = TypeVar("Result")


def once(function: Callable[[Recording], Result]) -> Callable[[Recording], Result]:
    """Remember the result for the recording asked about last: rules share one after another."""
    last: list[tuple[weakref.ref[Recording], Result]] = []

    def remembered(recording: Recording) -> Result:
        if not last or last[0][0]() is not recording:
            last[:] = [(weakref.ref(recording), function(recording))]
        return last[0][1]

    return remembered
