"""Lays work that a host gives to a device on two lanes: how long both take, who worked and who waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile, Level
from graphdoctor.estimate.ranges import towards
from graphdoctor.values.figures import Range
from graphdoctor.values.lanes import Placement

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
        if times == 1:
            return self
        return Work(
            host_us=np.concatenate((self.host_us,) * times),
            launch_us=np.concatenate((self.launch_us,) * times),
            gap_us=np.concatenate((self.gap_us,) * times),
            busy_us=np.concatenate((self.busy_us,) * times),
            inner_us=np.concatenate((self.inner_us,) * times),
            puts=np.concatenate((self.puts,) * times),
            waits=np.concatenate((self.waits,) * times),
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
class Clocks:
    """Where host and device stand, and how long the device idled so far."""

    host: float = 0.0
    device: float = 0.0
    waiting: float = 0.0
    drained: float = 0.0  # all of it
    owed: float = 0.0  # drained since the device last started


def run(work: Work, positions: Positions | None = None, *, clocks: Clocks | None = None) -> Laid:
    """Let host and device work side by side; `positions`, with a place for each row, is filled.

    With `clocks` of what ran before, the span and the idle times include those of that.
    Between two waits the host never looks at the device, so such a stretch is computed at once where it is long.
    """
    clocks = Clocks() if clocks is None else clocks
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


def _one_by_one(work: Work, rows: slice, clocks: Clocks, positions: Positions | None) -> None:
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


def _stretch(work: Work, rows: slice, clocks: Clocks, positions: Positions | None) -> None:
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


_SETTLED = 3  # steps, until each takes as long as the one before
_FEW_ROWS = 12  # steps in a row, of which the first one's start is still to be seen
_DECIMALS = 2  # of a placement: finer than any figure is known


class Piece(Struct, frozen=True, gc=False):
    """What the host does and puts on the device: an operator, or the replay of a graph.

    `launches` kernels share `device_us`; a graph is one launch of `nodes` kernels.
    `is_sync`: the host then waits for the device; `waits_before`: it also does so before.
    `operator` and `graph` number what it stands for, -1 is neither.
    """

    host_us: Range
    device_us: Range
    launches: int
    nodes: int = 0
    is_sync: bool = False
    waits_before: bool = False
    is_copy: bool = False  # into a static input of a graph
    operator: int = -1
    graph: int = -1


class Case(Struct, frozen=True):
    """Which ends of the host's and of the device's ranges to take, and how much of their width."""

    host: Level
    device: Level
    host_width: float
    device_width: float


def lay_out(pieces: Sequence[Piece], profile: DeviceProfile, case: Case) -> Laid:
    """Lay the pieces on two lanes, over and over; what one of many steps in a row takes.

    A step that nobody waits for begins while the device still works on the one before: its first
    launch costs no idle time, and either the host or the device sets the pace.
    """
    return settled(work_of(pieces, profile, case))


def settled(work: Work) -> Laid:
    """What one of many steps in a row takes.

    Where the host has waited for the device it does not matter any more what went before: from the first
    wait on, each step takes as long as the one before.
    """
    steps = 1 if work.waits.any() else _SETTLED
    some, clocks = work.repeated(steps), Clocks()
    few = run(some, clocks=clocks)
    many = run(some, clocks=clocks)
    return Laid(
        span_us=(many.span_us - few.span_us) / steps,
        host_us=few.host_us / steps,
        busy_us=few.busy_us / steps,
        waiting_us=max(0.0, many.waiting_us - few.waiting_us) / steps,  # sums round, differently
        drained_us=(many.drained_us - few.drained_us) / steps,
    )


def taken_in_a_row(work: Work, calls: int) -> float:
    """Time of one of so many steps in a row, which are waited for after the last, in us.

    Until the first graph is launched the device has nothing to do, which few steps do not make up for.
    """
    if calls > _FEW_ROWS:
        return settled(work).span_us
    return run(work.repeated(calls)).span_us / calls


def place(pieces: Sequence[Piece], profile: DeviceProfile, case: Case) -> list[Placement]:
    """Where each piece lies in one step that begins with an idle device."""
    rows = _rows(pieces, profile, case)
    found = Positions.empty(len(rows.host))
    run(_columns(rows, profile, case), found)
    if not rows.begins:
        return []
    begins = np.array(rows.begins)
    columns = (
        found.host_at_us[begins],
        np.add.reduceat(found.host_until_us - found.host_at_us, begins),
        np.add.reduceat(found.waited_us, begins),
        found.device_at_us[begins],
        np.add.reduceat(found.device_until_us - found.device_at_us, begins),
    )
    rounded = (column.round(_DECIMALS).tolist() for column in columns)
    return [Placement(*row) for row in zip(*rounded, strict=True)]


def work_of(pieces: Sequence[Piece], profile: DeviceProfile, case: Case) -> Work:
    """The pieces as rows of work, in order."""
    return _columns(_rows(pieces, profile, case), profile, case)


def _rows(pieces: Sequence[Piece], profile: DeviceProfile, case: Case) -> _Rows:
    launch = towards(profile.launch_us.range, case.host, case.host_width)
    node_gap = profile.node_gap_us.at(case.device)  # one figure that nobody measured
    host_of = _narrowed((piece.host_us for piece in pieces), case.host, case.host_width)
    device_of = _narrowed((piece.device_us for piece in pieces), case.device, case.device_width)
    rows = _Rows()
    for piece, host, device in zip(pieces, host_of, device_of, strict=True):
        if piece.waits_before:
            rows.wait()
        rows.begins.append(len(rows.host))
        if not piece.launches:
            rows.add(host)
        for number in range(piece.launches):
            before = host - piece.launches * launch if number == 0 else 0.0
            inner = max(0, piece.nodes - 1) * node_gap
            rows.add(before, launch, device / piece.launches, inner)
        if piece.is_sync:
            rows.wait()
    return rows


def _columns(rows: _Rows, profile: DeviceProfile, case: Case) -> Work:
    def host_us(value: Range) -> float:
        return towards(value, case.host, case.host_width)

    queue_gap = towards(profile.queue_gap_us.range, case.device, case.device_width)
    return Work(
        host_us=np.array(rows.host),
        launch_us=np.array(rows.launch),
        gap_us=np.full(len(rows.host), queue_gap),
        busy_us=np.array(rows.busy),
        inner_us=np.array(rows.inner),
        puts=np.array(rows.puts, np.bool_),
        waits=np.array(rows.waits, np.bool_),
        latency_us=host_us(profile.launch_latency_us.range),
        sync_us=host_us(profile.sync_us.range),
    )


@dataclass(slots=True)
class _Rows:
    """The columns of the work while it is collected."""

    host: list[float] = field(default_factory=list)
    launch: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    inner: list[float] = field(default_factory=list)
    puts: list[bool] = field(default_factory=list)
    waits: list[bool] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # the first row of each piece

    def add(
        self, host: float, launch: float = 0.0, busy: float | None = None, inner: float = 0.0
    ) -> None:
        """`busy` is None for what puts nothing on the device."""
        self.host.append(host)
        self.launch.append(launch)
        self.busy.append(busy or 0.0)
        self.inner.append(inner)
        self.puts.append(busy is not None)
        self.waits.append(False)

    def wait(self) -> None:
        if not self.waits or self.waits[-1]:
            self.add(0.0)
        self.waits[-1] = True


def _narrowed(values: Iterable[Range], level: Level, width: float) -> list[float]:
    """Many ranges at one end; equal ones, of which a step has many, are computed once."""
    known: dict[Range, float] = {}
    found = []
    for value in values:
        result = known.get(value)
        if result is None:
            result = known[value] = towards(value, level, width)
        found.append(result)
    return found
