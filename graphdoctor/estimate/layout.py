"""The pieces of a step in order -> two lanes: how long, who worked, who waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile, Level
from graphdoctor.estimate.ranges import towards
from graphdoctor.estimate.two_lanes import Laid, Positions, Work, run
from graphdoctor.values.figures import Range
from graphdoctor.values.lanes import Placement

_SETTLED = 3  # steps, until each takes as long as the one before
_FEW = 12  # steps in a row, of which the first one's start is still to be seen
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
    few = run(work.repeated(steps))
    many = run(work.repeated(2 * steps))
    return Laid(
        span_us=(many.span_us - few.span_us) / steps,
        host_us=(many.host_us - few.host_us) / steps,
        busy_us=(many.busy_us - few.busy_us) / steps,
        waiting_us=max(0.0, many.waiting_us - few.waiting_us) / steps,  # sums round, differently
        drained_us=(many.drained_us - few.drained_us) / steps,
    )


def taken_in_a_row(work: Work, calls: int) -> float:
    """Time of one of so many steps in a row, which are waited for after the last, in us.

    Until the first graph is launched the device has nothing to do, which few steps do not make up for.
    """
    if calls > _FEW:
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
