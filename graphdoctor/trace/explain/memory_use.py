"""A Trace with memory events -> how much the device's allocator held, what was left, and when it was asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdoctor.trace.arrays import Ints, Trace, median
from graphdoctor.trace.explain.gaps import Gaps
from graphdoctor.trace.nesting import NONE
from graphdoctor.trace.windows import Window, inside
from graphdoctor.values.trace_work import MemoryUse


def memory_use(
    trace: Trace, device: int, found: Gaps, host_windows: Sequence[Window]
) -> MemoryUse | None:
    """Of the device's own allocator in the windows of host time; None where nothing was recorded."""
    events = trace.memory
    label = trace.devices[device]
    mine = events.device == int(label) if label.isdigit() else events.device != NONE
    if not mine.any():
        # AMD's profiler numbers kernels by the machine's agents, and memory by the visible devices.
        mine = events.device != NONE
        if len(set(events.device[mine].tolist())) != 1:
            return None
    events = events.take(mine)
    rows = np.flatnonzero(inside(events.start_ns, host_windows))
    if not len(rows):
        return None
    steps, is_given = len(host_windows), events.nbytes[rows] > 0
    given = rows[is_given]
    knows_held = bool(events.allocated.any() or events.reserved.any())
    windows = host_windows if knows_held else ()
    return MemoryUse(
        peak_allocated_bytes=int(events.allocated[rows].max()) if knows_held else None,
        peak_reserved_bytes=int(events.reserved[rows].max()) if knows_held else None,
        growth_bytes=_growth(events.start_ns, events.allocated, windows),
        reserved_growth_bytes=_growth(events.start_ns, events.reserved, windows),
        allocations=len(given) / steps,
        allocated_bytes=int(events.nbytes[given].sum()) / steps,
        allocations_in_gaps=int(_in_gaps(found, events.start_ns[given]).sum()) / steps,
    )


def _growth(moments: Ints, held: Ints, windows: Sequence[Window]) -> float | None:
    """How much more is held at the end of a step than at that of the one before, in the median; None of one."""
    if len(windows) < 2:
        return None
    last = np.searchsorted(moments, sorted(high for _, high in windows), side="left") - 1
    known = held[last[last >= 0]]
    return median(np.diff(known)) if len(known) > 1 else None


def _in_gaps(found: Gaps, moments: Ints) -> Ints:
    """Which moments lie in a gap, in which the device waits."""
    place = np.searchsorted(found.start_ns, moments, side="right") - 1
    if not len(found.start_ns):
        return np.zeros(len(moments), np.int64)
    is_inside: Ints = ((place >= 0) & (found.end_ns[np.maximum(place, 0)] > moments)).astype(
        np.int64
    )
    return is_inside
