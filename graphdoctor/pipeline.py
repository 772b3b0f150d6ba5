"""The whole pipeline: a target -> record, diagnose, partition, capture, verify, estimate, measure -> its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate import launches, with_costs
from graphdoctor.estimate.gpus import DeviceProfile, load_profile
from graphdoctor.measure.profile import ready_for_graphs
from graphdoctor.measure.speed import time_step
from graphdoctor.partition import partition
from graphdoctor.proof.stage import capture_and_verify
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.record.variation import with_fixed_inputs
from graphdoctor.strategies.choice import check_names
from graphdoctor.strategies.evidence import Evidence, assemble, could_not_run
from graphdoctor.strategies.side_by_side import compare_strategies
from graphdoctor.target import Target, from_object, resolve, snapshot
from graphdoctor.values.errors import UsageError
from graphdoctor.values.options import AnalyzeOptions, DeviceChoice
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Mode, Report

Progress = Callable[[str], None]


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
    request = _Request(lambda: from_object(subject, *inputs, mode=mode, **kwargs), None, options)
    return _analyze(request, lambda doing: None)


def analyze_target(spec: str, options: AnalyzeOptions, progress: Progress) -> Report:
    """Diagnose what `file.py`, `file.py:name` or `package.module:name` describes."""
    request = _Request(
        lambda: resolve(spec, mode=options.mode, inputs=options.inputs), spec, options
    )
    return _analyze(request, progress)


@dataclass(frozen=True, slots=True)
class _Request:
    """What to analyse, and how. `spec` finds it again in another process; None: nothing does."""

    find: Callable[[], Target]
    spec: str | None
    options: AnalyzeOptions


def _analyze(request: _Request, progress: Progress) -> Report:
    options = request.options
    check_names(options.strategies)
    profile = load_profile(options.gpu)
    with _generators_kept(), open_device(options.device, profile) as device:
        progress("finding the model")
        target = request.find()
        try:
            before = snapshot(target.roots)
            try:
                placed = place(target, device)
                if options.fixed_inputs:
                    placed = with_fixed_inputs(placed)
                return _report(placed, device, request, profile, progress)
            finally:
                before.restore()
        finally:
            target.close()


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Random generators and torch's switches are put back, whatever the user's file did to them."""
    before = snapshot({})
    try:
        yield
    finally:
        before.restore()


def _report(
    target: Target,
    device: AnyDevice,
    request: _Request,
    profile: DeviceProfile,
    progress: Progress,
) -> Report:
    options = request.options
    try:
        progress("warming up")
        session = prepare(target, device, iterations=options.iterations)
        recording = record(session, progress=progress)
    except EmulationLimit as limit:
        return could_not_run(target, device, str(limit))
    _check_not_empty(recording)
    progress("diagnosing")
    diagnosis = diagnose(recording)
    costed = with_costs(diagnosis.findings, recording, profile)
    diagnosis = replace(diagnosis, findings=costed)
    plan = partition(recording, diagnosis, profile=profile)
    if device.kind == "cuda" and (options.trace_dir is not None or options.strategies != ()):
        ready_for_graphs()
    progress("capturing and verifying")
    captured = capture_and_verify(session, recording, diagnosis, plan)
    progress("estimating the speed-up")
    speed = time_step(session, recording, captured, plan, options, profile)
    evidence = Evidence(session, recording, diagnosis, plan, captured, speed)
    report = assemble(evidence)
    if options.trace_dir is not None:
        from graphdoctor.reporters.tensorboard import with_traces  # brings rich and tensorboard

        report = with_traces(report, evidence)
    if options.strategies != ():
        return compare_strategies(
            report,
            evidence,
            options=options,
            profile=profile,
            spec=request.spec,
            progress=progress,
        )
    if captured.step is not None:
        captured.step.release()
    return report


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
