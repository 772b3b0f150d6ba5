"""A target and batch sizes -> the pipeline at each size, as one `Sweep`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from graphdoctor import __version__
from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate.gpus import DeviceProfile, load_profile
from graphdoctor.measure.speed import time_step
from graphdoctor.partition import partition
from graphdoctor.proof.stage import capture_and_verify
from graphdoctor.record import prepare, record
from graphdoctor.strategies.evidence import Evidence, assemble, could_not_run
from graphdoctor.sweep.gain_end import gain_end
from graphdoctor.sweep.row import row_of
from graphdoctor.sweep.sizes import Find, Sizes, open_sizes
from graphdoctor.sweep.stuck import stuck_outputs
from graphdoctor.target import Target, from_object, resolve, snapshot
from graphdoctor.target.inputs.rebatch import held_batches
from graphdoctor.target.user_code import is_out_of_memory
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Recording, TensorUse
from graphdoctor.values.report import Report
from graphdoctor.values.sweep import SWEEP_SCHEMA_VERSION, Sweep, SweepRow, SweptInput

Progress = Callable[[str], None]
SIZES = (1, 2, 4, 8, 16, 32, 64)


def sweep_target(
    spec: str, batches: Sequence[int], options: AnalyzeOptions, progress: Progress
) -> Sweep:
    """Try what `file.py`, `file.py:name` or `package.module:name` describes at each batch size."""

    def find(batch: int | None) -> Target:
        # Inputs that were given are the ones to change: a function's own would replace them.
        asked = None if options.inputs else batch
        found = resolve(spec, mode=options.mode, inputs=options.inputs, batch=asked)
        return replace(found, sized_by="") if options.inputs else found

    return _sweep(find, batches, options, progress)


def sweep_object(
    subject: object,
    *inputs: object,
    batches: Sequence[int] = SIZES,
    options: AnalyzeOptions | None = None,
) -> Sweep:
    """Try a module on its inputs, or what a function returns as `graphdoctor_target()` would.

    Everything that this touches is afterwards as it was before.
    """
    chosen = options if options is not None else AnalyzeOptions()
    return _sweep(
        lambda batch: from_object(subject, *inputs, mode=chosen.mode),
        batches,
        chosen,
        lambda doing: None,
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all sizes have in common."""

    sizes: Sizes
    device: AnyDevice
    options: AnalyzeOptions
    profile: DeviceProfile
    progress: Progress


def _sweep(
    find: Find, batches: Sequence[int], options: AnalyzeOptions, progress: Progress
) -> Sweep:
    profile = load_profile(options.gpu)
    with _generators_kept(), open_device(options.device, profile) as device:
        progress("finding the model")
        with open_sizes(find, device) as sizes:
            setting = _Setting(sizes, device, options, profile, progress)
            return _assembled(setting, tuple(_rows(setting, sorted(set(batches)))))


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Random generators and torch's switches are put back, whatever the user's file did to them."""
    before = snapshot({})
    try:
        yield
    finally:
        before.restore()


def _rows(setting: _Setting, batches: Sequence[int]) -> Iterator[SweepRow]:
    full_at = 0
    for batch in batches:
        if full_at:
            reason = f"not run, since memory ran out at batch {full_at}"
            yield SweepRow(batch=batch, status="not-run", reason=reason)
            continue
        with _generators_kept():
            row = _row(setting, batch)
        _give_memory_back(setting.device)
        if row.status == "out-of-memory":
            full_at = batch
        yield row


def _row(setting: _Setting, batch: int) -> SweepRow:
    try:
        with setting.sizes.at(batch) as target:
            return _judged(setting, target, batch)
    except (GraphDoctorError, EmulationLimit) as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            return SweepRow(batch=batch, status="out-of-memory", reason=str(error))
        return SweepRow(batch=batch, status="failed", reason=_with_state(setting, batch, error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        first_line = str(error).strip().split("\n", 1)[0]
        return SweepRow(batch=batch, status="out-of-memory", reason=f"memory ran out: {first_line}")


def _with_state(setting: _Setting, batch: int, error: Exception) -> str:
    """The error, and the state that may be its reason: made for the described batch."""
    plan = setting.sizes.plan
    if plan is None or batch == plan.size or setting.sizes.described.sized_by:
        return str(error)
    held = held_batches(setting.sizes.described, plan.size)
    if not held:
        return str(error)
    return f"{error}; state that may have been made for batch {plan.size}: {held}"


def _judged(setting: _Setting, target: Target, batch: int) -> SweepRow:
    report, outputs = _analysed(setting, target, batch)
    plan = setting.sizes.plan
    described = plan.size if plan is not None else batch
    stuck = stuck_outputs(setting.sizes.outputs, outputs, described=described, batch=batch)
    if stuck.is_all:
        return SweepRow(batch=batch, status="failed", reason=stuck.text)
    if stuck.text:
        return row_of(batch, report, notes=(stuck.text,))
    return row_of(batch, report)


def _analysed(
    setting: _Setting, target: Target, batch: int
) -> tuple[Report, dict[str, tuple[int, ...]]]:
    """The stages of an analysis, and the shapes of what the step returned."""

    def tell(doing: str) -> None:
        setting.progress(f"batch {batch}: {doing}")

    tell("warming up")
    session = prepare(target, setting.device, iterations=setting.options.iterations)
    recording = record(session, progress=tell)
    if not any(op.is_cuda for iteration in recording.captured for op in iteration.ops):
        raise GraphDoctorError("the step ran no operator on the CUDA device")
    diagnosis = diagnose(recording)
    plan = partition(recording, diagnosis, profile=setting.profile)
    tell("capturing and verifying")
    captured = capture_and_verify(session, recording, diagnosis, plan)
    try:
        tell("timing")
        speed = time_step(session, recording, captured, plan, setting.options, setting.profile)
    finally:
        if captured.step is not None:
            captured.step.release()
    evidence = Evidence(session, recording, diagnosis, plan, captured, speed)
    return assemble(evidence), _output_shapes(recording)


def _output_shapes(recording: Recording) -> dict[str, tuple[int, ...]]:
    leaves = recording.captured[-1].outputs
    return {leaf.path: leaf.value.shape for leaf in leaves if isinstance(leaf.value, TensorUse)}


def _give_memory_back(device: AnyDevice) -> None:
    """What one size held must not make the next one run out of memory."""
    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()


def _assembled(setting: _Setting, rows: tuple[SweepRow, ...]) -> Sweep:
    sizes, plan = setting.sizes, setting.sizes.plan
    about = could_not_run(sizes.described, setting.device, "")
    is_measured = any(row.status == "measured" for row in rows)
    is_changed = not sizes.described.sized_by and plan is not None
    return Sweep(
        schema_version=SWEEP_SCHEMA_VERSION,
        tool_version=__version__,
        target=about.target,
        machine=about.machine,
        gpu=about.machine.device_name if is_measured else setting.profile.title,
        rows=rows,
        end=gain_end(rows),
        described_batch=plan.size if plan is not None else None,
        sized_by=sizes.described.sized_by,
        inputs=tuple(SweptInput(i.path, i.shape, i.changes) for i in plan.inputs)
        if plan is not None and is_changed
        else (),
        notes=plan.notes if plan is not None and is_changed else (),
    )
