"""The pieces of a step in order in, two lanes out: how long, who worked, who waited."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from graphdoctor.estimate.ranges import towards
from graphdoctor.model import Range
from graphdoctor.profiles import DeviceProfile, Level


class Piece(Struct, frozen=True, gc=False):
    """What the host does and puts on the device: an operator, or the replay of a graph.

    `launches` kernels share `device_us`; a graph is one launch of `nodes` kernels.
    `is_sync`: the host then waits for the device; `waits_before`: it also does so before.
    """

    host_us: Range
    device_us: Range
    launches: int
    nodes: int = 0
    is_sync: bool = False
    waits_before: bool = False
    is_copy: bool = False  # into a static input of a graph


class Laid(Struct, frozen=True):
    """One step on two lanes, in us; in `waiting_us` the device idled for want of a launch."""

    span_us: float
    host_us: float
    busy_us: float
    waiting_us: float


class _Speeds(Struct, frozen=True):
    launch: float
    latency: float
    queue_gap: float
    node_gap: float
    sync: float


class Case(Struct, frozen=True):
    """Which ends of the host's and of the device's ranges to take, and how much of their width."""

    host: Level
    device: Level
    host_width: float
    device_width: float


def lay_out(pieces: Iterable[Piece], profile: DeviceProfile, case: Case) -> Laid:
    """Lay the pieces on two lanes."""

    def host_us(value: Range) -> float:
        return towards(value, case.host, case.host_width)

    def device_us(value: Range) -> float:
        return towards(value, case.device, case.device_width)

    speeds = _Speeds(
        launch=host_us(profile.launch_us.range),
        latency=host_us(profile.launch_latency_us.range),
        queue_gap=device_us(profile.queue_gap_us.range),
        node_gap=profile.node_gap_us.at(case.device),  # one figure that nobody measured
        sync=host_us(profile.sync_us.range),
    )
    lanes = _Lanes(speeds)
    for piece in pieces:
        lanes.put(piece, host_us(piece.host_us), device_us(piece.device_us))
    return lanes.laid()


class _Lanes:
    """The two clocks while a step is laid out."""

    def __init__(self, speeds: _Speeds) -> None:
        self._speeds = speeds
        self._host = 0.0
        self._host_work = 0.0
        self._device = 0.0
        self._busy = 0.0
        self._waiting = 0.0
        self._drained = 0.0  # idle time that a sync explains, not the launches

    def put(self, piece: Piece, host_us: float, device_us: float) -> None:
        speeds = self._speeds
        if piece.waits_before:
            self._wait()
        self._host_work += host_us
        if not piece.launches:
            self._host += host_us
        else:
            self._host += host_us - piece.launches * speeds.launch
            kernel_us = device_us / piece.launches
            for _ in range(piece.launches):
                self._start(self._host + speeds.latency)
                self._device += kernel_us + max(0, piece.nodes - 1) * speeds.node_gap
                self._host += speeds.launch
            self._busy += device_us
        if piece.is_sync:
            self._wait()

    def _start(self, ready: float) -> None:
        earliest = self._device + self._speeds.queue_gap if self._device else 0.0
        if ready > earliest:
            self._waiting += max(0.0, ready - earliest - self._drained)
            self._drained = 0.0
        self._device = max(ready, earliest)

    def _wait(self) -> None:
        drained = max(self._host, self._device) + self._speeds.sync
        self._drained += drained - max(self._host, self._device)
        self._host = drained

    def laid(self) -> Laid:
        tail = max(0.0, self._host - self._device - self._drained)
        return Laid(
            span_us=max(self._host, self._device),
            host_us=self._host_work,
            busy_us=self._busy,
            waiting_us=self._waiting + tail,
        )
