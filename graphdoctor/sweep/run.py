"""A target and batch sizes -> the pipeline at each size, as one `Sweep`."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from graphdoctor import __version__
from graphdoctor.device.open import AnyDevice
from graphdoctor.diagnose.assemble import machine_info, target_info
from graphdoctor.pipeline import (
    Progress,
    Setting,
    generators_kept,
    open_setting,
    proven,
    study,
)
from graphdoctor.record.variation import FIXED
from graphdoctor.sweep.rows import gain_end, row_of
from graphdoctor.sweep.sizes import Find, Sizes, open_sizes, stuck_outputs
from graphdoctor.target import Target, resolve
from graphdoctor.target.inputs.rebatch import held_batches
from graphdoctor.target.user_code import is_out_of_memory
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Recording, TensorUse
from graphdoctor.values.sweep import SWEEP_SCHEMA_VERSION, Sweep, SweepRow, SweptInput


def sweep_target(
    spec: str, batches: Sequence[int], options: AnalyzeOptions, progress: Progress
) -> Sweep:
    """Try what `file.py`, `file.py:name` or `package.module:name` describes at each batch size."""

    def find(batch: int | None) -> Target:
        # Inputs that were given are the ones to change: a function's own would replace them.
        asked = None if options.inputs else batch
        found = resolve(spec, mode=options.mode, inputs=options.inputs, batch=asked)
        return replace(found, sized_by="") if options.inputs else found

    return sweep(find, batches, options, progress)


def sweep(find: Find, batches: Sequence[int], options: AnalyzeOptions, progress: Progress) -> Sweep:
    """Try what `find` gives for a batch size, or for its own (None), at each of them."""
    with open_setting(options, progress) as setting:
        progress("finding the model")
        with open_sizes(find, setting.device) as sizes:
            rows = tuple(_rows(sizes, setting, sorted(set(batches))))
            return _assembled(sizes, setting, rows)


def _rows(sizes: Sizes, setting: Setting, batches: Sequence[int]) -> Iterator[SweepRow]:
    full_at = 0
    for batch in batches:
        if full_at:
            reason = f"not run, since memory ran out at batch {full_at}"
            yield SweepRow(batch=batch, status="not-run", reason=reason)
            continue
        with generators_kept():
            row = _row(sizes, setting, batch)
        _give_memory_back(setting.device)
        if row.status == "out-of-memory":
            full_at = batch
        yield row


def _row(sizes: Sizes, setting: Setting, batch: int) -> SweepRow:
    try:
        with sizes.at(batch) as target:
            return _judged(sizes, setting, target, batch)
    except GraphDoctorError as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            return SweepRow(batch=batch, status="out-of-memory", reason=str(error))
        return SweepRow(batch=batch, status="failed", reason=_with_state(sizes, batch, error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        first_line = str(error).strip().split("\n", 1)[0]
        return SweepRow(batch=batch, status="out-of-memory", reason=f"memory ran out: {first_line}")


def _with_state(sizes: Sizes, batch: int, error: Exception) -> str:
    """The error, and the state that may be its reason: made for the described batch."""
    plan = sizes.plan
    if plan is None or batch == plan.size or sizes.described.sized_by:
        return str(error)
    held = held_batches(sizes.described, plan.size)
    if not held:
        return str(error)
    return f"{error}; state that may have been made for batch {plan.size}: {held}"


def _judged(sizes: Sizes, setting: Setting, target: Target, batch: int) -> SweepRow:
    told = replace(setting, progress=lambda doing: setting.progress(f"batch {batch}: {doing}"))
    studied = study(target, told)
    with proven(studied, told) as (report, _):
        described = sizes.plan.size if sizes.plan is not None else batch
        outputs = _output_shapes(studied.recording)
        stuck = stuck_outputs(sizes.outputs, outputs, described=described, batch=batch)
        if stuck.is_all:
            return SweepRow(batch=batch, status="failed", reason=stuck.text)
        return row_of(batch, report, notes=(stuck.text,) if stuck.text else ())


def _output_shapes(recording: Recording) -> dict[str, tuple[int, ...]]:
    leaves = recording.captured[-1].outputs
    return {leaf.path: leaf.value.shape for leaf in leaves if isinstance(leaf.value, TensorUse)}


def _give_memory_back(device: AnyDevice) -> None:
    """Keep what one size held from making the next one run out of memory."""
    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()


def _assembled(sizes: Sizes, setting: Setting, rows: tuple[SweepRow, ...]) -> Sweep:
    plan, machine = sizes.plan, machine_info(setting.device)
    is_measured = any(row.status == "measured" for row in rows)
    is_changed = not sizes.described.sized_by and plan is not None
    described = sizes.described
    if setting.options.fixed_inputs:
        described = replace(described, notes=(*described.notes, FIXED))
    return Sweep(
        schema_version=SWEEP_SCHEMA_VERSION,
        tool_version=__version__,
        target=target_info(described),
        machine=machine,
        gpu=machine.device_name if is_measured else setting.profile.title,
        rows=rows,
        end=gain_end(rows),
        described_batch=plan.size if plan is not None else None,
        sized_by=sizes.described.sized_by,
        inputs=tuple(SweptInput(i.path, i.shape, i.changes) for i in plan.inputs)
        if plan is not None and is_changed
        else (),
        notes=plan.notes if plan is not None and is_changed else (),
        host="" if is_measured else setting.profile.host,
    )
