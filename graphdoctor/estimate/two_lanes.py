"""Work that a host puts on a device, in order -> how long both take and who waited."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_FEW = 64  # rows, up to which one after the other takes less time than calling NumPy thirty times


class Laid(Struct, frozen=True):
    """One run on two lanes, in us.

    In `waiting_us` the device idled for want of a launch; in `drained_us` because the host had
    waited for it.
    """

    span_us: float
    host_us: float
    busy_us: float
    waiting_us: float
    drained_us: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What the host issues, one row an operator, a launch or a whole graph; times in us.

    The host works for `host_us`, then the device can start `latency_us` later, at the earliest
    `gap_us` after what it did before; it works for `busy_us`, with pauses of `inner_us` (between
    the nodes of a graph), while the host goes on after `launch_us`.
    `puts`: whether the row puts anything on the device. `waits`: whether the host then waits for
    the device, which takes `sync_us` more than the device needs.
    """

    host_us: Floats
    launch_us: Floats
    gap_us: Floats
    busy_us: Floats
    inner_us: Floats
    puts: Mask
    waits: Mask
    latency_us: float
    sync_us: float

    def __len__(self) -> int:
        return len(self.host_us)

    def scaled(self, *, host: float, device: float) -> Work:
        """The same work where the host's own takes `host` times as long, and the device's `device` times."""
        return replace(
            self,
            host_us=self.host_us * host,
            launch_us=self.launch_us * host,
            busy_us=self.busy_us * device,
        )

    def repeated(self, times: int) -> Work:
        """The same work several times in a row."""
        return Work(
            host_us=np.tile(self.host_us, times),
            launch_us=np.tile(self.launch_us, times),
            gap_us=np.tile(self.gap_us, times),
            busy_us=np.tile(self.busy_us, times),
            inner_us=np.tile(self.inner_us, times),
            puts=np.tile(self.puts, times),
            waits=np.tile(self.waits, times),
            latency_us=self.latency_us,
            sync_us=self.sync_us,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Where each row of work lies on the lanes, in us; what puts nothing on the device has 0 there."""

    host_at_us: Floats
    host_until_us: Floats
    waited_us: Floats
    device_at_us: Floats
    device_until_us: Floats

    @classmethod
    def empty(cls, rows: int) -> Positions:
        return cls(*(np.zeros(rows) for _ in range(5)))


@dataclass(slots=True)
class _Clocks:
    host: float = 0.0
    device: float = 0.0
    waiting: float = 0.0
    drained: float = 0.0  # all of it
    owed: float = 0.0  # drained since the device last started


def run(work: Work, positions: Positions | None = None) -> Laid:
    """Let host and device work side by side; `positions`, with a place for each row, is filled.

    Between two waits the host never looks at the device, so such a stretch is computed at once where it is long.
    """
    clocks = _Clocks()
    stops = np.flatnonzero(work.waits) + 1
    start = 0
    for stop in [*stops.tolist(), len(work)]:
        if stop > start:
            lay = _stretch if stop - start > _FEW else _one_by_one
            lay(work, slice(start, stop), clocks, positions)
        if stop > start and work.waits[stop - 1]:
            # How long the host waits.
            began, late = clocks.host, max(clocks.host, clocks.device)
            clocks.owed += work.sync_us
            clocks.drained += work.sync_us
            clocks.host = late + work.sync_us
            waited = clocks.host - began
            if positions is not None:
                positions.waited_us[stop - 1] = waited
        start = stop
    tail = max(0.0, clocks.host - clocks.device - clocks.owed)
    busy = float(work.busy_us[work.puts].sum())
    return Laid(
        span_us=max(clocks.host, clocks.device),
        host_us=float(work.host_us.sum() + work.launch_us.sum()),
        busy_us=busy,
        waiting_us=clocks.waiting + tail,
        drained_us=clocks.drained,
    )


def _one_by_one(work: Work, rows: slice, clocks: _Clocks, positions: Positions | None) -> None:
    columns = (work.host_us, work.launch_us, work.gap_us, work.busy_us, work.inner_us, work.puts)
    each = zip(*(column[rows].tolist() for column in columns), strict=True)
    for row, (host, launch, gap, busy, inner, puts) in enumerate(each, rows.start):
        began, clocks.host = clocks.host, clocks.host + (host + launch)
        if positions is not None:
            positions.host_at_us[row], positions.host_until_us[row] = began, clocks.host
        if not puts:
            continue
        earliest = clocks.device + (gap if clocks.device else 0.0)
        late = clocks.host - launch + work.latency_us - earliest
        if late > 0.0:
            clocks.waiting += max(late - clocks.owed, 0.0)
            clocks.owed = 0.0
        starts = earliest + max(late, 0.0)
        clocks.device = starts + (busy + inner)
        if positions is not None:
            positions.device_at_us[row], positions.device_until_us[row] = starts, clocks.device


def _stretch(work: Work, rows: slice, clocks: _Clocks, positions: Positions | None) -> None:
    host, launch = work.host_us[rows], work.launch_us[rows]
    reached = clocks.host + np.cumsum(host + launch)
    if positions is not None:
        positions.host_at_us[rows] = reached - host - launch
        positions.host_until_us[rows] = reached
    puts = np.flatnonzero(work.puts[rows])
    if len(puts):
        ready = (reached - launch)[puts] + work.latency_us
        gap = work.gap_us[rows][puts]
        busy = (work.busy_us[rows] + work.inner_us[rows])[puts]
        if not clocks.device:
            gap = np.concatenate(([0.0], gap[1:]))
        # end[i] = max(ready[i], end[i-1] + gap[i]) + busy[i], by a running maximum.
        total = np.cumsum(gap + busy)
        end = total + np.maximum(np.maximum.accumulate(ready + busy - total), clocks.device)
        earliest = np.concatenate(([clocks.device], end[:-1])) + gap
        late = np.maximum(ready - earliest, 0.0)
        first = np.flatnonzero(late)[:1]
        if len(first):
            late[first] = np.maximum(late[first] - clocks.owed, 0.0)
            clocks.owed = 0.0
        clocks.waiting += float(late.sum())
        clocks.device = float(end[-1])
        if positions is not None:
            positions.device_at_us[rows][puts] = end - busy
            positions.device_until_us[rows][puts] = end
    clocks.host = float(reached[-1])
