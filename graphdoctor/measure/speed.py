"""A session and its captures -> launch-bound share and speed-up: predicted, or measured on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from graphdoctor.estimate import estimate, on_other_hosts, step_lanes
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.graphs.whole_step import CapturedStep
from graphdoctor.measure.endurance import blocks_for
from graphdoctor.measure.profile import Profile, profile_step
from graphdoctor.measure.rank_times import estimate_of_ranks
from graphdoctor.measure.skew import launch_skew
from graphdoctor.measure.wall_clock import Blocks, measure
from graphdoctor.partition import Plan
from graphdoctor.proof.stage import Captured
from graphdoctor.record.session import Session
from graphdoctor.trace.explain.estimate import estimate_from_trace
from graphdoctor.values.errors import UsageError
from graphdoctor.values.lanes import StepLanes
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Recording
from graphdoctor.values.speed import Estimate, Measurement

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
    if session.device.kind == "emulated":
        wanted = options.trace_dir is not None
        return Speed(predicted, lanes, runs=(_eager_run(session, options),) if wanted else ())
    # Findings of one rank may leave it alone without a graph: it would not come to the others' collectives.
    step = captured.step if session.device.meeting.everywhere(captured.step is not None) else None
    measurement = _measured(session, step) if step is not None else None
    eager = _eager_run(session, options)
    if session.device.meeting.has_others:
        measurement = _with_skew(measurement, eager, session, step, options)
        runs: tuple[ProfiledRun, ...] = (eager,) if options.trace_dir else ()
        limits: tuple[str, ...] = ()
    else:
        runs, limits = _kept(eager, session, step, options)
    found: Estimate | None
    try:
        wall_us = measurement.eager_us if measurement is not None else _wall_us(session)
        if session.device.meeting.has_others:
            traced = eager.profile.trace
            found = estimate_of_ranks(
                traced,
                wall_us,
                profile,
                steps=steps_to_profile(session),
                meeting=session.device.meeting,
            )
        else:
            found = estimate_from_trace(eager.profile.trace, wall_us, profile)
    except UsageError as error:
        return Speed(predicted, lanes, measurement, runs, (str(error), *limits))
    return Speed(found or predicted, lanes, measurement, runs, limits)


def _with_skew(
    measurement: Measurement | None,
    eager: ProfiledRun,
    session: Session,
    step: CapturedStep | None,
    options: AnalyzeOptions,
) -> Measurement | None:
    if measurement is None or step is None:
        return measurement
    captured = _captured_run(session, step, options)
    skew = launch_skew(eager.profile.trace, captured.profile.trace, session.device.meeting)
    return replace(measurement, skew=skew)


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


def _measured(session: Session, step: CapturedStep) -> Measurement:
    """Eager against a replay with the inputs copied into place, which is what a caller has to do."""
    inputs = session.inputs(0)
    with session.start.around():
        blocks = blocks_for(step, verified_calls=len(session.batches))
        return measure(
            lambda: session.call(inputs),
            lambda: step.call(inputs),
            budget_s=_BUDGET_S,
            blocks=blocks,
            meeting=session.device.meeting,
        )


def _wall_us(session: Session) -> float:
    """The step's own wall time, where there is no graph to compare it with."""
    inputs = session.inputs(0)
    with session.start.around():
        # The recording has shown that so many calls in a row work, and nothing more.
        blocks = Blocks(most_calls=len(session.batches), prepare=session.start.restore)
        same = measure(
            lambda: session.call(inputs),
            lambda: session.call(inputs),
            budget_s=_BUDGET_S / 4,
            blocks=blocks,
            meeting=session.device.meeting,
        )
        return same.eager_us


def _eager_run(session: Session, options: AnalyzeOptions) -> ProfiledRun:
    inputs = session.inputs(0)
    with session.start.around():
        found = profile_step(
            lambda: session.call(inputs),
            steps=steps_to_profile(session),
            trace_dir=_folder(options, EAGER),
        )
        return ProfiledRun(EAGER, found)


def _kept(
    eager: ProfiledRun, session: Session, step: CapturedStep | None, options: AnalyzeOptions
) -> tuple[tuple[ProfiledRun, ...], tuple[str, ...]]:
    """The runs whose traces were asked for, and why one of them is missing."""
    if options.trace_dir is None:
        return (), ()
    if step is None:
        return (eager,), ()
    try:
        return (eager, _captured_run(session, step, options)), ()
    except RuntimeError as error:
        return (eager,), (f"The replay of the graph could not be profiled: {error}",)


def _captured_run(session: Session, step: CapturedStep, options: AnalyzeOptions) -> ProfiledRun:
    """Replays with the inputs copied into place, each from the state of the capture."""
    inputs = session.inputs(0)
    step.start.restore()
    try:
        found = profile_step(
            lambda: step.call(inputs),
            steps=steps_to_profile(session),
            trace_dir=_folder(options, CAPTURED),
        )
        return ProfiledRun(CAPTURED, found)
    finally:
        session.start.restore()


def steps_to_profile(session: Session) -> int:
    """As many as the recording has shown to work in a row, less the one that does not count."""
    return max(1, min(_PROFILED_STEPS, len(session.batches) - 1))


def _folder(options: AnalyzeOptions, run: str) -> Path | None:
    return Path(options.trace_dir) / run if options.trace_dir is not None else None
