"""The replay of a trace's steps -> the same steps with graphs, or without waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from graphdoctor.estimate.gpus import DeviceProfile, Level
from graphdoctor.estimate.two_lanes import Floats, Mask, Work
from graphdoctor.trace.arrays import Ints, median
from graphdoctor.trace.explain.replay import Replay

# A pause of the host this long, and this many times a usual one, may be no part of the model.
_PAUSE_US = 1000.0
_PAUSE_FACTOR = 50.0


@dataclass(frozen=True, slots=True, eq=False)
class Graphed:
    """The steps as graphs: the work that is left, and how it came about; figures of all steps."""

    work: Work
    regions: int
    captured: int  # launches that graphs replace
    nodes: int
    node_gaps_us: float
    graph_launch_us: float
    upload_us: float  # copies from the host, which stay: they bring the inputs
    stays_us: float  # host time that no graph removes


def without_waits(work: Work) -> Work:
    """The steps of a host that never waits for the device, but at the very end."""
    return replace(work, waits=np.zeros(len(work), np.bool_))


def with_graphs(replay: Replay, work: Work, profile: DeviceProfile, level: Level) -> Graphed:
    """Every run of launches between two waits, copies from the host or steps becomes one graph.

    `work` is that of the replay without a profiler, `level` which ends of the profile's figures to take. What
    graphs cannot hold stays: uploads, graphs that are there already, waits, the host's first reaction after a
    wait, loading and preparing data, and (but in the optimistic case) other long pauses of the host.
    """
    region = _regions(replay)
    starts = np.flatnonzero(np.diff(region, prepend=-1) != 0)
    eager_us = np.add.reduceat(work.host_us + work.launch_us, starts)
    nodes = np.add.reduceat(replay.nodes, starts)
    fixed_us, each_us = profile.graph_launch_us, profile.graph_node_launch_us
    launch_us = fixed_us.at(level) + nodes * each_us.at(level)
    single = ~(replay.in_graph | replay.is_upload | ~work.puts)[starts]
    pays = single & (eager_us > launch_us)
    rows_pay = np.repeat(pays, np.diff(np.append(starts, len(region))))
    kept_us = np.where(rows_pay, _stays(replay, work, level), work.host_us)
    merged = _merged(len(work), starts, pays)
    gaps_us = np.where(pays, np.maximum(nodes - 1, 0) * profile.node_gap_us.at(level), 0.0)
    new = _collapse(work, merged, kept_us)
    place = np.searchsorted(merged, starts[pays])
    new.launch_us[place] = launch_us[pays]
    new.inner_us[place] += gaps_us[pays] + _dependent_us(work, profile, starts, pays)
    new.gap_us[place] = np.minimum(new.gap_us[place], profile.queue_gap_us.mid)
    return Graphed(
        work=new,
        regions=int(pays.sum()),
        captured=int(rows_pay.sum()),
        nodes=int(nodes[pays].sum()),
        node_gaps_us=float(gaps_us.sum()),
        graph_launch_us=float(launch_us[pays].sum()),
        upload_us=float(work.busy_us[replay.is_upload].sum()),
        stays_us=float((kept_us + np.where(rows_pay, 0.0, work.launch_us)).sum()),
    )


@lru_cache(maxsize=1)
def _regions(replay: Replay) -> Ints:
    """The same number for the launches that can be one graph, in order."""
    work = replay.work
    alone = replay.in_graph | replay.is_upload | ~work.puts
    after = np.append(True, (work.waits | alone)[:-1])
    begins = after | alone | (np.diff(replay.step, prepend=-1) != 0)
    return np.cumsum(begins)


def _stays(replay: Replay, work: Work, level: Level) -> Floats:
    """Host time before each captured launch that no graph removes."""
    usual = _usual_us(work)
    is_pause = work.host_us > max(_PAUSE_US, _PAUSE_FACTOR * usual)
    always = np.minimum(replay.fixed_us + replay.elsewhere_us, work.host_us)
    stays = always.copy()
    reacts = np.append(False, work.waits[:-1])
    if level != "low":
        stays = np.where(is_pause, work.host_us, stays)
        # Before the first launch of all steps lies what was there before the step.
        stays[0] = work.host_us[0]
    if level == "high":
        stays = np.where(reacts | replay.opens, work.host_us, stays)
    return np.maximum(stays, always)


@lru_cache(maxsize=1)
def _usual_us(work: Work) -> float:
    """The host's usual time before a launch."""
    return median(work.host_us) if len(work) else 0.0


def _merged(count: int, starts: Ints, pays: Mask) -> Ints:
    """Where the rows of the new work begin: a region that pays is one row, all else stays apart."""
    sizes = np.diff(np.append(starts, count))
    keep = ~np.repeat(pays, sizes)
    keep[starts] = True
    return np.flatnonzero(keep)


def _collapse(work: Work, starts: Ints, host_us: Floats) -> Work:
    """One row for each run of rows; the last of its waits counts, the first of its gaps."""
    last = np.append(starts[1:], len(work)) - 1
    return replace(
        work,
        host_us=np.add.reduceat(host_us, starts),
        launch_us=work.launch_us[starts].copy(),
        gap_us=work.gap_us[starts].copy(),
        busy_us=np.add.reduceat(work.busy_us, starts),
        inner_us=work.inner_us[starts].copy(),
        puts=work.puts[starts],
        waits=work.waits[last],
    )


def _dependent_us(work: Work, profile: DeviceProfile, starts: Ints, pays: Mask) -> Floats:
    """Gaps in queued work beyond the usual, such as waits for another stream: a graph keeps them."""
    beyond = np.maximum(work.gap_us - profile.queue_gap_us.high, 0.0)
    beyond = np.add.reduceat(beyond, starts)
    inner = np.add.reduceat(work.inner_us, starts) - work.inner_us[starts]
    found: Floats = (beyond + inner)[pays]
    return found
