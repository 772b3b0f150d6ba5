"""The whole pipeline: target -> recording -> diagnosis -> plan -> graphs, verified -> times -> report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.diagnose.assemble import Results, assemble, could_not_run
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate import launches, with_costs
from graphdoctor.estimate.gpus import DeviceProfile, load_profile
from graphdoctor.measure.profile import ready_for_graphs
from graphdoctor.measure.speed import time_step
from graphdoctor.partition import partition
from graphdoctor.proof.eager_runs import EagerRuns
from graphdoctor.proof.stage import capture_and_verify
from graphdoctor.record import Session, prepare, record
from graphdoctor.record.place import place
from graphdoctor.record.variation import narrowed, with_fixed_inputs
from graphdoctor.strategies.choice import check_names
from graphdoctor.strategies.evidence import Evidence, Studied
from graphdoctor.strategies.side_by_side import compare_strategies
from graphdoctor.target import Snapshot, Target, from_object, resolve, snapshot
from graphdoctor.values.errors import UsageError, UserCodeError
from graphdoctor.values.options import AnalyzeOptions, DeviceChoice
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Mode, Report

Progress = Callable[[str], None]
_DEFAULTS = AnalyzeOptions()


def silent(doing: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a step is studied, and where progress is reported."""

    device: AnyDevice
    options: AnalyzeOptions = _DEFAULTS
    progress: Progress = silent

    @property
    def profile(self) -> DeviceProfile:
        """The profile of the GPU that predictions are for."""
        return load_profile(self.options.gpu)


def analyze(
    subject: object,
    *inputs: object,
    mode: Mode | None = None,
    device: DeviceChoice = "auto",
    iterations: int = 4,
    gpu: str = "h100",
    strategies: Sequence[str] | None = None,
    budget_s: float = 120.0,
    vary_inputs: bool = True,
    **kwargs: object,
) -> Report:
    """Diagnose a module on its inputs, or what a function returns as `graphdoctor_target()` would.

    `strategies` are compared within `budget_s` seconds: () for none, None for those that fit; on a
    real GPU only the whole step as one graph, since the others need a target in a file.
    Without `vary_inputs` every iteration gets the inputs as given; else other values of the same make,
    where the step accepts them. Everything that the analysis touches is afterwards as it was before. Raises
    `graphdoctor.values.errors.UserCodeError` where the step itself fails.
    """
    options = AnalyzeOptions(
        mode=mode,
        device=device,
        iterations=iterations,
        gpu=gpu,
        strategies=tuple(strategies) if strategies is not None else None,
        budget_s=budget_s,
        fixed_inputs=not vary_inputs,
    )
    return _analyze(
        lambda: from_object(subject, *inputs, mode=mode, **kwargs), None, options, silent
    )


def analyze_target(spec: str, options: AnalyzeOptions, progress: Progress) -> Report:
    """Diagnose what `file.py`, `file.py:name` or `package.module:name` describes."""
    return _analyze(
        lambda: resolve(spec, mode=options.mode, inputs=options.inputs), spec, options, progress
    )


def _analyze(
    find: Callable[[], Target], spec: str | None, options: AnalyzeOptions, progress: Progress
) -> Report:
    """`spec` finds the target again in another process; None: nothing does."""
    check_names(options.strategies)
    with open_setting(options, progress) as setting:
        progress("finding the model")
        with put_back(target := find()):
            placed = place(target, setting.device)
            try:
                return _report(study(placed, setting), spec, setting)
            except EmulationLimit as limit:
                return could_not_run(placed, setting.device, str(limit))


def study(target: Target, setting: Setting) -> Studied:
    """Record the step, diagnose it, and cut it into regions; nothing is captured yet."""
    if setting.options.fixed_inputs:
        target = with_fixed_inputs(target)
    session, ran, recording = _recorded(target, setting)
    setting.progress("diagnosing")
    diagnosis = diagnose(recording)
    plan = partition(recording, diagnosis, profile=setting.profile)
    return Studied(session, recording, diagnosis, plan, ran)


def _recorded(target: Target, setting: Setting) -> tuple[Session, EagerRuns | None, Recording]:
    """Inputs whose other values turn out not to go together after all are kept as given."""
    setting.progress("warming up")
    try:
        session = prepare(target, setting.device, iterations=setting.options.iterations)
        ran = EagerRuns(session) if setting.device.kind == "emulated" else None
        look = ran.look if ran is not None else None
        return session, ran, record(session, progress=setting.progress, look=look)
    except UserCodeError as error:
        fewer = narrowed(target, error)
        if fewer is None:
            raise
        return _recorded(fewer, setting)


@contextmanager
def proven(studied: Studied, setting: Setting) -> Iterator[tuple[Report, Evidence]]:
    """Capture, verify and time what was studied; inside the block its graph can be replayed.

    The findings get what they cost a step.
    """
    session, recording, plan = studied.session, studied.recording, studied.plan
    _check_not_empty(recording)
    costed = with_costs(studied.diagnosis.findings, recording, setting.profile)
    diagnosis = replace(studied.diagnosis, findings=costed)
    setting.progress("capturing and verifying")
    captured = capture_and_verify(session, recording, diagnosis, plan, ran=studied.ran)
    kept = tuple(found for found in diagnosis.findings if found not in captured.refuted)
    diagnosis = replace(diagnosis, findings=kept)
    try:
        setting.progress("estimating the speed-up")
        speed = time_step(session, recording, captured, plan, setting.options, setting.profile)
        results = Results(
            findings=diagnosis.findings,
            regions=tuple(planned.region for planned in plan.regions),
            safe_modules=plan.safe_modules,
            captures=captured.outcomes,
            estimate=speed.estimate,
            measurement=speed.measurement,
            limits=(*captured.limits, *speed.limits),
        )
        evidence = Evidence(session, recording, diagnosis, plan, studied.ran, captured, speed)
        yield assemble(session, recording, results), evidence
    finally:
        captured.release()


def _report(studied: Studied, spec: str | None, setting: Setting) -> Report:
    options = setting.options
    if setting.device.kind == "cuda" and (
        options.trace_dir is not None or options.strategies != ()
    ):
        ready_for_graphs()
    with proven(studied, setting) as (report, evidence):
        if options.trace_dir is not None:
            from graphdoctor.reporters.tensorboard import with_traces  # brings rich and tensorboard

            report = with_traces(report, evidence)
        if options.strategies == ():
            return report
        return compare_strategies(
            report,
            evidence,
            options=options,
            profile=setting.profile,
            spec=spec,
            progress=setting.progress,
        )


def _check_not_empty(recording: Recording) -> None:
    if not any(op.is_cuda for iteration in recording.captured for op in iteration.ops):
        raise UsageError(
            "The step ran no operator on the CUDA device, so there is nothing to capture: "
            "put the model and its inputs on the device, and let the step call it."
        )
    if not any(launches(op) for iteration in recording.captured for op in iteration.ops):
        raise UsageError(
            "The step launches nothing on the CUDA device: it only makes views and allocations, so "
            "there is nothing to capture."
        )


@contextmanager
def open_setting(options: AnalyzeOptions, progress: Progress) -> Iterator[Setting]:
    """Inside the block, code that says "cuda" runs on the device of the options."""
    profile = load_profile(options.gpu)  # raises for an unknown name before anything runs
    with generators_kept(), open_device(options.device, profile) as device:
        yield Setting(device, options, progress)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore random generators and torch's global settings, whatever the user's code did to them."""
    before = snapshot({})
    try:
        yield
    finally:
        before.restore()


@contextmanager
def put_back(target: Target) -> Iterator[Snapshot]:
    """Inside the block the target may run; afterwards its state is restored and it is closed."""
    try:
        before = snapshot(target.roots)
        try:
            yield before
        finally:
            before.restore()
    finally:
        target.close()
