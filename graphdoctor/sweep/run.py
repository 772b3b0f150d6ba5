"""Run the pipeline on a target at several batch sizes, each from the state it was found in, as one `Sweep`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

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
    put_back,
    study,
)
from graphdoctor.record.place import PLACED, place
from graphdoctor.record.variation import FIXED
from graphdoctor.target import Inputs, Snapshot, Target, named_tensors, resolve, snapshot, user_code
from graphdoctor.target.inputs.rebatch import (
    BatchPlan,
    find_batch,
    held_batches,
    rebatch,
    shapes_of,
)
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.tree import leaves
from graphdoctor.target.user_code import first_line, is_out_of_memory
from graphdoctor.values.errors import GraphDoctorError, UsageError
from graphdoctor.values.figures import Range
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import TensorUse
from graphdoctor.values.report import Report
from graphdoctor.values.sweep import (
    SMALLEST_GAIN,
    SWEEP_SCHEMA_VERSION,
    GainEnd,
    RowStatus,
    Scope,
    Sweep,
    SweepRow,
    SweptInput,
)

Find = Callable[[int | None], Target]  # a batch size, or None for what the file says by itself
Shapes = Mapping[str, tuple[int, ...]]


class Sizes(Protocol):
    """A step at any batch size. `outputs` are those of the described one, where they can be had."""

    @property
    def described(self) -> Target: ...

    @property
    def plan(self) -> BatchPlan | None: ...

    @property
    def outputs(self) -> Shapes: ...

    def at(self, size: int) -> AbstractContextManager[Target]:
        """The target on the device; when the block is left, its state is what it was before."""
        ...


@contextmanager
def open_sizes(find: Find, device: AnyDevice) -> Iterator[Sizes]:
    """Ask the user's functions where they take a batch size, else change the inputs.

    Raises UsageError where the batch cannot be changed in either way.
    """
    described = find(None)
    if described.sized_by:
        asked = _asked(described, find, device)
        del described  # its memory is needed: each size makes a model of its own
        yield asked
        return
    with _on_device(described, device) as (placed, before):
        # What was put on the device must be put back there, and not to where it came from.
        state = before if PLACED not in placed.notes else snapshot(placed.roots)
        yield _changed(placed, state)


@contextmanager
def _on_device(target: Target, device: AnyDevice) -> Iterator[tuple[Target, Snapshot]]:
    """The target on the device, and its state from before, which is put back; then it is closed."""
    with put_back(target) as before:
        yield place(target, device), before


@dataclass(frozen=True, slots=True)
class _Changed:
    """One target, whose inputs are given more or fewer rows."""

    described: Target
    plan: BatchPlan
    outputs: Shapes
    state: Snapshot

    @contextmanager
    def at(self, size: int) -> Iterator[Target]:
        try:
            yield rebatch(self.described, self.plan, size)
        finally:
            self.state.restore()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A new target for each size, from functions that take it. `shapes` are the described inputs'."""

    described: Target
    plan: BatchPlan | None
    find: Find
    device: AnyDevice
    shapes: Shapes

    @property
    def outputs(self) -> Shapes:
        """Not asked for: who makes the model and its inputs for a size knows what belongs together."""
        return {}

    @contextmanager
    def at(self, size: int) -> Iterator[Target]:
        with _on_device(self.find(size), self.device) as (placed, _):
            yield self._sized(placed, size)

    def _sized(self, placed: Target, size: int) -> Target:
        """A function for the model alone may take the size: the inputs are then still the same."""
        if self.plan is None or shapes_of(_inputs_of(placed)) != self.shapes:
            return placed
        return rebatch(placed, self.plan, size)


def _asked(described: Target, find: Find, device: AnyDevice) -> _Asked:
    with _on_device(described, device) as (placed, _):
        inputs = _inputs_of(placed)
        try:
            plan = find_batch(placed, inputs)
        except UsageError:  # its own functions know better how to make a batch
            plan = None
        about = replace(placed, step=_nothing, fresh_inputs=Inputs, roots={}, close=_nothing)
        return _Asked(about, plan, find, device, shapes_of(inputs))


def _nothing() -> None:
    pass


def _changed(placed: Target, state: Snapshot) -> _Changed:
    inputs = _inputs_of(placed)
    plan = find_batch(placed, inputs)
    try:
        return _Changed(placed, plan, _described_shapes(placed, inputs), state)
    finally:
        state.restore()


def _inputs_of(target: Target) -> Inputs:
    with user_code("making the inputs"):
        return target.fresh_inputs()


def _described_shapes(target: Target, inputs: Inputs) -> Shapes:
    """Of one run as described; empty where memory does not even suffice for that."""
    given = clone_inputs(inputs, kept=memory_of(named_tensors(target.roots).values()))
    try:
        with user_code("running the step"):
            outputs = target.step(*given.args, **given.kwargs)
    except Exception as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            return {}
        raise
    found = leaves(outputs, "output")
    return {path: tuple(leaf.shape) for path, leaf in found.items() if hasattr(leaf, "shape")}


@dataclass(frozen=True, slots=True)
class Stuck:
    """`text` names the outputs that keep the described batch's size, "" for none.

    `is_all`: no output followed, so that the step did not run at the wanted size at all.
    """

    text: str = ""
    is_all: bool = False


def stuck_outputs(before: Shapes, now: Shapes, *, described: int, batch: int) -> Stuck:
    """Outputs with as many rows as before: broadcasting against a cache hides a wrong batch.

    From a batch of 1 nothing can be concluded: an output of one row may be a summary.
    """
    if batch == described:
        return Stuck()
    sized = [path for path, shape in before.items() if shape and shape[0] == described]
    kept = [path for path in sized if now.get(path, ())[:1] == (described,)]
    if not kept or described == 1:
        return Stuck()
    follows = any(now.get(path, ())[:1] == (batch,) for path in sized)
    text = (
        f"{', '.join(kept)} {'keeps' if len(kept) == 1 else 'keep'} the {described} rows of the"
        " described batch: something that was not changed decides how many there are"
    )
    return Stuck(text, is_all=not follows)


def row_of(batch: int, report: Report, *, notes: tuple[str, ...] = ()) -> SweepRow:
    """The figures of a report that has an estimate; what was measured stands before it."""
    estimate, measured = report.estimate, report.measurement
    assert estimate is not None
    scope = _scope(report)
    eager = estimate.eager_us if measured is None else Range.exact(measured.eager_us)
    graph = estimate.graph_us if measured is None else Range.exact(measured.graph_us)
    speedup = (
        estimate.speedup
        if measured is None
        else Range(measured.speedup_low, measured.speedup, measured.speedup_high)
    )
    status: RowStatus = "measured" if measured is not None else "predicted"
    return SweepRow(
        batch=batch,
        status=status if scope else "no-graph",
        reason="" if scope else _why_not(report),
        verdict=report.verdict,
        scope=scope,
        eager_us=eager,
        graph_us=graph if scope else None,
        speedup=speedup if scope else None,
        launch_bound_share=estimate.launch_bound_share,
        device_busy_share=_share(estimate.device_busy_us, estimate.eager_us),
        eager_samples_per_s=_per_second(batch, eager),
        graph_samples_per_s=_per_second(batch, graph) if scope else None,
        measurement=measured,
        notes=(*notes, *report.limits),
    )


def _scope(report: Report) -> Scope:
    """What would be a graph; "" where a verdict of unsafe leaves nothing that would pay."""
    if report.verdict in ("safe", "unknown"):
        return "whole step"
    return "regions" if report.verdict == "partly-safe" else ""


def _why_not(report: Report) -> str:
    """The verdict's reason, and the rules that `graphdoctor analyze` explains it by."""
    blocking = [found for found in report.findings if found.effect != "replay-is-slow"]
    rules = dict.fromkeys(f"{found.rule} {found.name}" for found in blocking)
    return f"{report.reason} ({', '.join(rules)})" if rules else report.reason


def _share(part: Range, whole: Range) -> Range | None:
    if not (whole.low and whole.mid and whole.high):
        return None
    return Range(part.low / whole.high, part.mid / whole.mid, min(1.0, part.high / whole.low))


def _per_second(count: int, time_us: Range) -> Range | None:
    if not time_us.low > 0:
        return None
    return Range(*(count * 1e6 / each for each in (time_us.high, time_us.mid, time_us.low)))


def gain_end(rows: Sequence[SweepRow]) -> GainEnd:
    """The first size from which the speed-up's upper bound stays below `SMALLEST_GAIN`.

    A size without a speed-up says nothing, and is named. Where the largest sizes' bounds lie on
    both sides, the answer is unknown.
    """
    judged = [row for row in rows if row.speedup is not None]
    if not judged:
        reasons = [row.reason for row in rows if row.status == "no-graph"]
        if not reasons:
            return GainEnd(
                "unknown", "No size could be judged, so nothing is known about the gain."
            )
        return GainEnd("no-graph", f"No graph can be captured that would pay. {reasons[0]}")
    bounds = [(row.batch, row.speedup) for row in judged if row.speedup is not None]
    predicted = " (predicted)" if all(row.status == "predicted" for row in judged) else ""
    silent = [str(row.batch) for row in rows if row.speedup is None]
    rest = f" Nothing can be said of batch {', '.join(silent)}." if silent else ""
    ended = _first_of_tail(bounds, lambda speedup: speedup.high < SMALLEST_GAIN)
    if ended == bounds[0][0]:
        text = f"A graph brings less than {SMALLEST_GAIN:g}x at every size{predicted}.{rest}"
        return GainEnd("never-there", text, ended)
    if ended is not None:
        text = f"From batch {ended} on, a graph brings less than {SMALLEST_GAIN:g}x{predicted}."
        return GainEnd("ends", text + rest, ended)
    largest, speedup = bounds[-1]
    shown = f"{speedup.mid:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.low >= SMALLEST_GAIN:
        text = f"The gain does not end within these sizes: {shown} at batch {largest}{predicted}."
        return GainEnd("does-not-end", text + rest)
    doubtful = _first_of_tail(bounds, lambda speedup: speedup.low < SMALLEST_GAIN)
    text = (
        f"It cannot be said whether the gain ends within these sizes: from batch {doubtful} on, the"
        f" bounds lie on both sides of {SMALLEST_GAIN:g}x, with {shown} at batch {largest}"
        f"{predicted}.{_by_the_middle(bounds)}"
    )
    return GainEnd("cannot-tell", text + rest)


def _by_the_middle(bounds: Sequence[tuple[int, Range]]) -> str:
    """What the likeliest figures say, for a reader who has to choose all the same."""
    ended = _first_of_tail(bounds, lambda speedup: speedup.mid < SMALLEST_GAIN)
    if ended is None:
        return " By the middle of the bounds it does not end."
    return f" By the middle of the bounds it ends at batch {ended}."


def _first_of_tail(
    bounds: Sequence[tuple[int, Range]], holds: Callable[[Range], bool]
) -> int | None:
    """The smallest size from which on all hold; None where not even the largest does."""
    found = None
    for batch, speedup in reversed(bounds):
        if not holds(speedup):
            break
        found = batch
    return found


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
        # Keep what one size held from making the next one run out of memory.
        gc.collect()
        if setting.device.kind == "cuda":
            torch.cuda.empty_cache()
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
        reason = f"memory ran out: {first_line(error)}"
        return SweepRow(batch=batch, status="out-of-memory", reason=reason)


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
        leaves = studied.recording.captured[-1].outputs
        outputs = {
            leaf.path: leaf.value.shape for leaf in leaves if isinstance(leaf.value, TensorUse)
        }
        stuck = stuck_outputs(sizes.outputs, outputs, described=described, batch=batch)
        if stuck.is_all:
            return SweepRow(batch=batch, status="failed", reason=stuck.text)
        return row_of(batch, report, notes=(stuck.text,) if stuck.text else ())


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
