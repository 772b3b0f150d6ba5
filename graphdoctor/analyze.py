"""The whole pipeline: a target -> record, diagnose, partition, capture, verify, estimate, measure -> its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from graphdoctor.assemble import Evidence, assemble, could_not_run
from graphdoctor.capture.stage import capture_and_verify
from graphdoctor.device import AnyDevice, open_device
from graphdoctor.diagnose import diagnose
from graphdoctor.emulator import EmulationLimit
from graphdoctor.errors import UsageError
from graphdoctor.estimate import with_costs
from graphdoctor.model import Mode, Report
from graphdoctor.options import AnalyzeOptions, DeviceChoice
from graphdoctor.partition import partition
from graphdoctor.place import place
from graphdoctor.profiles import DeviceProfile, load_profile
from graphdoctor.record import prepare, record
from graphdoctor.record.profile import ready_for_graphs
from graphdoctor.recording import Recording
from graphdoctor.speed import time_step
from graphdoctor.target import Target, from_object, resolve, snapshot
from graphdoctor.trace_dir import with_traces

Progress = Callable[[str], None]


def analyze(
    subject: object,
    *inputs: object,
    mode: Mode | None = None,
    device: DeviceChoice = "auto",
    iterations: int = 4,
    gpu: str = "h100",
    **kwargs: object,
) -> Report:
    """Diagnose a module on its inputs, or what a function returns as `graphdoctor_target()` would.

    Everything that the analysis touches is afterwards as it was before. Raises
    `graphdoctor.errors.UserCodeError` where the step itself fails.
    """
    options = AnalyzeOptions(mode=mode, device=device, iterations=iterations, gpu=gpu)
    return _analyze(
        lambda: from_object(subject, *inputs, mode=mode, **kwargs), options, lambda doing: None
    )


def analyze_target(spec: str, options: AnalyzeOptions, progress: Progress) -> Report:
    """Diagnose what `file.py`, `file.py:name` or `package.module:name` describes."""
    return _analyze(
        lambda: resolve(spec, mode=options.mode, inputs=options.inputs), options, progress
    )


def _analyze(find: Callable[[], Target], options: AnalyzeOptions, progress: Progress) -> Report:
    profile = load_profile(options.gpu)
    with _generators_kept(), open_device(options.device, profile) as device:
        progress("finding the model")
        target = find()
        try:
            before = snapshot(target.roots)
            try:
                placed = place(target, device)
                return _report(placed, device, options, profile, progress)
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
    options: AnalyzeOptions,
    profile: DeviceProfile,
    progress: Progress,
) -> Report:
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
    if options.trace_dir is not None and device.kind == "cuda":
        ready_for_graphs()
    progress("capturing and verifying")
    captured = capture_and_verify(session, recording, diagnosis, plan)
    progress("estimating the speed-up")
    speed = time_step(session, recording, captured, plan, options, profile)
    if captured.step is not None:
        captured.step.release()
    evidence = Evidence(session, recording, diagnosis, plan, captured, speed)
    return with_traces(assemble(evidence), evidence)


def _check_not_empty(recording: Recording) -> None:
    if not any(op.is_cuda for iteration in recording.captured for op in iteration.ops):
        raise UsageError(
            "The step ran no operator on the CUDA device, so there is nothing to capture: "
            "put the model and its inputs on the device, and let the step call it."
        )
