"""The launch-bound share and the speed-up of captures: predicted, or measured on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.estimate import estimate, on_other_hosts, step_lanes
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.graphs.whole_step import CapturedStep
from graphdoctor.measure.profile import Profile, profile_step
from graphdoctor.measure.wall_clock import Blocks, blocks_for, measure
from graphdoctor.partition import Plan
from graphdoctor.proof.stage import Captured
from graphdoctor.record.session import Session
from graphdoctor.trace import Trace
from graphdoctor.trace.arrays import Ints
from graphdoctor.trace.explain.graphed_steps import estimate_from_trace
from graphdoctor.trace.explain.ranks import RankLane, rank_lane
from graphdoctor.trace.intervals import union
from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range, time_text
from graphdoctor.values.lanes import StepLanes
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Recording
from graphdoctor.values.speed import Estimate, LaunchSkew, Measurement, Skew, Term

# A collective's kernel runs from when its own rank comes to it, and does nothing until the last one has: only what
# follows is work. A graph is launched at once, so that in it no rank comes late.


class Times(NamedTuple):
    """Of one step on this rank: work of its own, collectives since all ranks were there, either, and waiting."""

    compute_us: float
    network_us: float
    busy_us: float
    waiting_us: float


def estimate_of_ranks(
    eager: Trace, wall_us: float, profile: DeviceProfile, *, steps: int, meeting: Meeting
) -> Estimate | None:
    """`steps` eager steps under the profiler, each of which takes `wall_us` without it.

    All ranks have to ask. None where they have no clock in common, or saw different collectives.

    Raises UsageError when the trace has no device events.
    """
    lane = rank_lane(eager)
    times = _times(lane, steps, meeting)
    if times is None:
        return None
    found = estimate_from_trace(eager, wall_us, profile)
    gap = profile.node_gap_us
    graph_us = Range(
        min(max(times.compute_us, times.network_us), wall_us),
        min(times.busy_us + found.launches * gap.mid, wall_us),
        min(times.compute_us + times.network_us + found.launches * gap.high, wall_us),
    )
    return replace(
        found,
        device_busy_us=Range.exact(times.busy_us),
        graph_us=graph_us,
        launch_bound_share=Range(
            1 - graph_us.high / wall_us, 1 - graph_us.mid / wall_us, 1 - graph_us.low / wall_us
        ),
        speedup=Range(wall_us / graph_us.high, wall_us / graph_us.mid, wall_us / graph_us.low),
        terms=(
            Term("work of the device except collectives", time_text(times.compute_us), "profiled"),
            Term("collectives, once all ranks are there", time_text(times.network_us), "profiled"),
            Term("gap between graph nodes", f"{gap.mid:g} us", gap.source),
        ),
        notes=(
            f"In eager the device of this rank waits for other ranks for {time_text(times.waiting_us)} a step, inside"
            " collectives; that is not counted as busy, and a graph is taken not to wait.",
        ),
    )


def _times(lane: RankLane, steps: int, meeting: Meeting) -> Times | None:
    mine = [lane.start_ns.tolist(), lane.end_ns.tolist()]
    ranks = meeting.answers(mine, list[list[int]])
    if not is_one_host() or len({len(starts) for starts, _ in ranks}) != 1 or not mine[0]:
        return None
    end = lane.end_ns
    all_there = np.minimum(np.max([starts for starts, _ in ranks], axis=0), end)
    work = lane.work_ns
    low, high = np.concatenate((work[0], all_there)), np.concatenate((work[1], end))
    in_order = np.argsort(low, kind="stable")
    either = union(low[in_order], high[in_order])
    each = 1e3 * steps
    return Times(
        compute_us=_length(*work) / each,
        network_us=_length(all_there, end) / each,
        busy_us=_length(*either) / each,
        waiting_us=_length(lane.start_ns, all_there) / each,
    )


def _length(low: Ints, high: Ints) -> int:
    return int((high - low).sum())


_BUDGET_S = 10.0
_PROFILED_STEPS = 3
EAGER, CAPTURED = ("eager", "captured")


@dataclass(frozen=True, slots=True)
class Speed:
    """`measurement` only of a real GPU and a verified graph; `runs` only where they were asked for.

    `lanes` are always predicted.
    """

    estimate: Estimate
    lanes: StepLanes
    measurement: Measurement | None = None
    runs: tuple[ProfiledRun, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """One of the two under the profiler, its traces kept in a folder of that name."""

    name: str
    profile: Profile


def time_step(
    session: Session,
    recording: Recording,
    captured: Captured,
    plan: Plan,
    options: AnalyzeOptions,
    profile: DeviceProfile,
) -> Speed:
    """Predict from the recording; on a GPU, measure, and estimate from what the profiler saw."""
    predicted, lanes = _predicted(recording, plan, captured, profile)
    inputs, meeting = session.inputs(0), session.device.meeting

    def eager() -> object:
        return session.call(inputs)

    def profiled_eager() -> ProfiledRun:
        with session.start.around():
            return _profiled(EAGER, eager, session, options)

    if session.device.kind == "emulated":
        wanted = options.trace_dir is not None
        return Speed(predicted, lanes, runs=(profiled_eager(),) if wanted else ())
    # Findings of one rank may leave it alone without a graph: it would not come to the others' collectives.
    step = captured.step if meeting.everywhere(captured.step is not None) else None
    with session.start.around():
        if step is not None:
            # A replay with the inputs copied into place, which is what a caller has to do.
            fast: Callable[[], object] = partial(step.call, inputs)
            budget_s = _BUDGET_S
            blocks = blocks_for(step, verified_calls=len(session.batches))
        else:
            # The step's own time. The recording has shown that so many calls in a row work, and nothing more.
            fast, budget_s = eager, _BUDGET_S / 4
            blocks = Blocks(most_calls=len(session.batches), prepare=session.start.restore)
        timed = measure(eager, fast, budget_s=budget_s, blocks=blocks, meeting=meeting)
    measurement = timed if step is not None else None
    run = profiled_eager()
    trace = run.profile.trace
    runs: tuple[ProfiledRun, ...] = (run,) if options.trace_dir is not None else ()
    limits: tuple[str, ...] = ()
    if step is not None and meeting.has_others:
        replays = _captured_run(session, step, options)
        measurement = replace(timed, skew=launch_skew(trace, replays.profile.trace, meeting))
    elif step is not None and options.trace_dir is not None:
        try:
            runs = (run, _captured_run(session, step, options))
        except RuntimeError as error:
            limits = (f"The replay of the graph could not be profiled: {error}",)
    found: Estimate | None
    try:
        if meeting.has_others:
            steps = steps_to_profile(session)
            found = estimate_of_ranks(trace, timed.eager_us, profile, steps=steps, meeting=meeting)
        else:
            found = estimate_from_trace(trace, timed.eager_us, profile)
    except UsageError as error:
        return Speed(predicted, lanes, measurement, runs, (str(error), *limits))
    return Speed(found or predicted, lanes, measurement, runs, limits)


def _predicted(
    recording: Recording, plan: Plan, captured: Captured, profile: DeviceProfile
) -> tuple[Estimate, StepLanes]:
    """Of the last iteration: graphs in place of what can be captured, the rest as it is."""
    iteration = recording.captured[-1]
    regions, names = None, None
    if not plan.whole and captured.step is None:
        named = {
            f"region {planned.region.name}": ops
            for planned in plan.regions
            if planned.region.worthwhile and (ops := planned.ops_in(iteration.index))
        }
        regions, names = [*named.values()], [*named]
    found = estimate(iteration, profile, regions)
    whole = found if regions is None else estimate(iteration, profile)
    found = replace(
        found,
        on_other_hosts=on_other_hosts(iteration, profile, regions),
        whole_speedup=whole.speedup,
    )
    return found, step_lanes(iteration, profile, regions, names=names)


def _profiled(
    name: str, call: Callable[[], object], session: Session, options: AnalyzeOptions
) -> ProfiledRun:
    folder = Path(options.trace_dir) / name if options.trace_dir is not None else None
    return ProfiledRun(name, profile_step(call, steps=steps_to_profile(session), trace_dir=folder))


def _captured_run(session: Session, step: CapturedStep, options: AnalyzeOptions) -> ProfiledRun:
    """Replays with the inputs copied into place, each from the state of the capture."""
    step.start.restore()
    try:
        return _profiled(CAPTURED, partial(step.call, session.inputs(0)), session, options)
    finally:
        session.start.restore()


def steps_to_profile(session: Session) -> int:
    """As many as the recording has shown to work in a row, less the one that does not count."""
    return max(1, min(_PROFILED_STEPS, len(session.batches) - 1))


_P95 = 0.95


def launch_skew(eager: Trace, captured: Trace, meeting: Meeting) -> LaunchSkew | None:
    """All ranks have to ask. None where they have no clock in common, or saw different collectives."""
    mine = [rank_lane(trace).start_ns.tolist() for trace in (eager, captured)]
    ranks = meeting.answers(mine, list[list[int]])
    if not is_one_host():
        return None
    found = [_skew([rank[run] for rank in ranks]) for run in range(2)]
    if found[0] is None or found[1] is None:
        return None
    return LaunchSkew(found[0], found[1])


def is_one_host() -> bool:
    """Times of the profiler are those of a host's clock."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _skew(begun_ns: Sequence[Sequence[int]]) -> Skew | None:
    """Of collectives in their order: how much later the last rank begins each than the first."""
    if len({len(one) for one in begun_ns}) != 1 or not begun_ns[0]:
        return None
    apart_us = sorted((max(at) - min(at)) / 1e3 for at in zip(*begun_ns, strict=True))
    return Skew(len(apart_us), median(apart_us), apart_us[int(_P95 * (len(apart_us) - 1))])
