"""The stages in a row: target, recording, diagnosis, plan, verified graphs, times, report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from msgspec.structs import replace

from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.diagnose.assemble import Results, assemble
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.diagnose.limits import about_outside
from graphdoctor.estimate import launches, with_costs
from graphdoctor.estimate.graph_memory import graph_memory
from graphdoctor.measure.profile import ready_for_graphs
from graphdoctor.measure.speed import time_step
from graphdoctor.partition import partition
from graphdoctor.pipeline.setting import Setting
from graphdoctor.proof.stage import Captured, capture_and_verify
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.record import Session, prepare, record
from graphdoctor.record.variation import narrowed, with_fixed_inputs
from graphdoctor.strategies.evidence import Evidence, Studied
from graphdoctor.strategies.side_by_side import compare_strategies
from graphdoctor.target import Target
from graphdoctor.values.errors import Interrupted, RaisesLater, UsageError, UserCodeError
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Report
from graphdoctor.values.speed import GraphMemory


def study(target: Target, setting: Setting) -> Studied:
    """Record the step, diagnose it, and cut it into regions; nothing is captured yet."""
    if setting.options.fixed_inputs:
        target = with_fixed_inputs(target)
    session, ran, recording = _recorded(target, setting)
    setting.begin("diagnosing")
    diagnosis = diagnose(recording)
    plan = partition(recording, diagnosis, profile=setting.profile)
    return Studied(session, recording, diagnosis, plan, ran)


def _recorded(target: Target, setting: Setting) -> tuple[Session, EagerRuns | None, Recording]:
    """Inputs whose other values turn out not to go together after all are kept as given."""
    setting.begin("warming up")
    try:
        session = prepare(
            target,
            setting.device,
            iterations=setting.options.iterations,
            deadline_s=setting.deadline_s,
        )
        setting.begin("recording")
        return _recorded_from(session, setting)
    except RaisesLater as error:
        return _recorded_as_far_as_it_goes(session, target, error, setting)
    except UserCodeError as error:
        fewer = narrowed(target, error)
        if fewer is None:
            raise
        return _recorded(fewer, setting)


def _recorded_as_far_as_it_goes(
    session: Session, target: Target, error: RaisesLater, setting: Setting
) -> tuple[Session, EagerRuns | None, Recording]:
    """Where other inputs do not help it is the state by which the step raises: what ran before is kept."""
    fewer = narrowed(target, error)
    if fewer is not None:
        session.start.restore()
        if setting.device.meeting.has_others:
            return _recorded(fewer, setting)
        with suppress(UserCodeError):
            return _recorded(fewer, setting)
    if setting.device.meeting.has_others:
        raise error
    return _recorded_from(session.up_to(error), setting)


def _recorded_from(
    session: Session, setting: Setting
) -> tuple[Session, EagerRuns | None, Recording]:
    is_exact = setting.device.kind == "emulated" and setting.device.has_values
    ran = EagerRuns(session) if is_exact else None
    look = ran.look if ran is not None else None
    recording = record(session, progress=setting.progress, look=look)
    if len(recording.captured) < len(session.batches):
        session = session.first(len(recording.captured))
        ran = ran.up_to(session) if ran is not None else None
    return session, ran, recording


@contextmanager
def proven(studied: Studied, setting: Setting) -> Iterator[tuple[Report, Evidence]]:
    """Capture, verify and time what was studied; inside the block its graph can be replayed.

    The findings get what they cost a step.
    """
    session, recording, plan = studied.session, studied.recording, studied.plan
    _check_not_empty(recording)
    costed = with_costs(studied.diagnosis.findings, recording, setting.profile)
    diagnosis = replace(studied.diagnosis, findings=costed)
    setting.begin("capturing and verifying")
    cut = partial(partition, recording, profile=setting.profile)
    captured = capture_and_verify(session, recording, diagnosis, plan, ran=studied.ran, cut=cut)
    diagnosis, plan = diagnosis.without(captured.refuted), captured.plan
    try:
        setting.begin("estimating the speedup")
        speed = time_step(session, recording, captured, plan, setting.options, setting.profile)
        results = Results(
            findings=diagnosis.findings,
            regions=tuple(planned.region for planned in plan.regions),
            safe_modules=plan.safe_modules,
            captures=captured.outcomes,
            estimate=speed.estimate,
            measurement=speed.measurement,
            lanes=speed.lanes,
            memory=_memory(studied, captured, setting),
            limits=(*captured.limits, *speed.limits),
        )
        evidence = Evidence(session, recording, diagnosis, plan, studied.ran, captured, speed)
        yield assemble(session, recording, results), evidence
    finally:
        captured.release()


def report_of(studied: Studied, spec: str | None, setting: Setting) -> Report:
    """All that is said of the step; `spec` finds its target again in another process.

    Raises Interrupted, with the report so far, if Ctrl-C is pressed while strategies are tried.
    """
    try:
        report = _report_of(studied, spec, setting)
    except Interrupted as error:
        raise Interrupted(replace(error.report, stages=setting.stage_times())) from None
    return replace(report, stages=setting.stage_times())


def _report_of(studied: Studied, spec: str | None, setting: Setting) -> Report:
    options = setting.options
    if setting.device.kind == "cuda" and (
        options.trace_dir is not None or options.strategies != ()
    ):
        ready_for_graphs()
    with proven(studied, setting) as (report, evidence):
        setting.device.table.keeps_addresses = True  # guards of what is captured from here on
        if options.trace_dir is not None:
            # brings rich
            from graphdoctor.reporters.tensorboard.write import with_strategies, with_traces

            report = with_traces(report, evidence)
        if options.strategies == ():
            return report
        setting.begin("trying strategies")
        try:
            compared = compare_strategies(
                report,
                evidence,
                options=options,
                profile=setting.profile,
                spec=spec,
                deadline_s=setting.deadline_s or time.monotonic() + options.budget_s,
                progress=setting.progress,
                show=setting.show,
            )
        except Interrupted:
            raise
        except KeyboardInterrupt:  # before the first strategy, or after the last
            raise Interrupted(report) from None
        except EmulationLimit as limit:  # another rank ended before
            return replace(
                report, limits=(*report.limits, f"Strategies are not compared: {limit}.")
            )
        if options.trace_dir is None:
            return compared
        return with_strategies(compared, evidence)


def _memory(studied: Studied, captured: Captured, setting: Setting) -> GraphMemory | None:
    """What a graph of the whole step would hold, beside what its pool does hold where there is one."""
    if not studied.plan.whole and captured.step is None:
        return None
    found = graph_memory(studied.recording.captured[-1], setting.profile)
    return replace(found, measured_bytes=captured.pool_bytes)


def _check_not_empty(recording: Recording) -> None:
    if not any(op.is_cuda for iteration in recording.captured for op in iteration.ops):
        elsewhere = "".join(f" ({said})" for said in about_outside(recording))
        raise UsageError(
            f"The step ran no operator on the CUDA device{elsewhere}, so there is nothing to capture: "
            "put the model and its inputs on the device, and let the step call it."
        )
    if not any(launches(op) for iteration in recording.captured for op in iteration.ops):
        raise UsageError(
            "The step launches nothing on the CUDA device: it only makes views and allocations, so "
            "there is nothing to capture."
        )
