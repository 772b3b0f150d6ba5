"""Explain one trace: everything that `graphdoctor trace` reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from graphdoctor import __version__
from graphdoctor.estimate.gpus import DeviceProfile, load_profile, unknown_profile
from graphdoctor.trace.arrays import KINDS, Ints, Table, Trace, together
from graphdoctor.trace.explain.device_work import device_work, occupied
from graphdoctor.trace.explain.gap_causes import Activity, activity, doings, longest_gaps, names_of
from graphdoctor.trace.explain.gaps import Gaps, Lanes, busiest_device, events_of, gaps, lanes_in
from graphdoctor.trace.explain.graph_use import graph_use, in_graphs
from graphdoctor.trace.explain.graphed_steps import predict_from_trace
from graphdoctor.trace.explain.hosts import (
    launch_totals,
    line_costs,
    operator_costs,
    outermost_waits,
    queue,
    sync_costs,
)
from graphdoctor.trace.explain.verdict import doubts, judge_trace, of_warm_up
from graphdoctor.trace.explain.warm_up import cold_work, why_unsteady
from graphdoctor.trace.intervals import NONE, Window, inside, window_of
from graphdoctor.trace.join import launch_of, operator_nesting
from graphdoctor.trace.read.blocks import TracePath
from graphdoctor.trace.steps import Steps, find_steps
from graphdoctor.values.errors import UsageError
from graphdoctor.values.lanes import LaneEvent, LaneGap, TraceLanes
from graphdoctor.values.trace import (
    TRACE_SCHEMA_VERSION,
    DeviceTime,
    Doubt,
    StepKind,
    StepTime,
    TraceReport,
)

MOST_EVENTS = 2_000  # of the device; a report is to stay one that can be sent


class _Names:
    """Each text once, and its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers)) if text else NONE


def trace_lanes(
    trace: Trace, device: int, steps: Steps, found: Gaps, acted: Activity
) -> TraceLanes | None:
    """As many steps from the first that counts on as have at most `MOST_EVENTS`; None of no steps."""
    if not steps.counted:
        return None
    low, high = _drawn(trace, device, steps)
    rows = events_of(trace, device)
    events = trace.device_events
    rows = rows[(events.end_ns[rows] > low) & (events.start_ns[rows] < high)]
    names = _Names()
    marks = [step for step in steps.all if low <= step.window[0] < high]
    return TraceLanes(
        begin_ns=low,
        span_ns=high - low,
        is_all=high >= max(step.window[1] for step in steps.counted),
        steps=tuple(
            LaneEvent(
                step.window[0] - low,
                min(step.window[1], high) - step.window[0],
                names.number(step.name),
            )
            for step in marks
        ),
        host=_host(trace, rows, (low, high), names),
        waits=_apart(trace, outermost_waits(trace), (low, high), names),
        device=_apart(trace, trace.device_events.take(rows), (low, high), names),
        gaps=_gaps(trace, found, acted, (low, high), names),
        names=tuple(names.numbers),
    )


def _drawn(trace: Trace, device: int, steps: Steps) -> Window:
    """From the first launch of the first step to the end of the last that fits."""
    first = steps.counted[0]
    ends = [step.window[1] for step in steps.counted]
    rows = events_of(trace, device)
    start = trace.device_events.start_ns[rows]
    begins = int(np.searchsorted(start, first.window[0]))
    last = begins + MOST_EVENTS
    most = int(start[last]) if last < len(start) else max(ends)
    fitting = [end for end in ends if end <= most]
    high = max(fitting, default=most)
    return min(first.host[0], first.window[0]), high


def _host(trace: Trace, rows: Ints, drawn: Window, names: _Names) -> tuple[LaneEvent, ...]:
    """Operators, and calls outside of any, of the thread that launched most of these events."""
    call = launch_of(trace)[rows]
    call = call[call != NONE]
    if not len(call):
        return ()
    thread = int(np.bincount(trace.calls.thread[call]).argmax())
    outermost = trace.operators.take(operator_nesting(trace).is_outermost)
    tables = (outermost, trace.calls)
    spans = together([table.take(table.thread == thread) for table in tables])
    return _apart(trace, spans, drawn, names)


def _apart(trace: Trace, table: Table, drawn: Window, names: _Names) -> tuple[LaneEvent, ...]:
    """The stretches in order, each without what one before it has of it."""
    low, high = drawn
    start, end = np.clip(table.start_ns, low, high), np.clip(table.end_ns, low, high)
    if not len(start):
        return ()
    reached = np.concatenate(([low], np.maximum.accumulate(end)[:-1]))
    start = np.maximum(start, reached)
    kept = np.flatnonzero(end > start)[: 2 * MOST_EVENTS]
    return tuple(
        LaneEvent(at - low, until - at, names.number(trace.names[name]))
        for at, until, name in zip(
            start[kept].tolist(), end[kept].tolist(), table.name[kept].tolist(), strict=True
        )
    )


def _gaps(
    trace: Trace, found: Gaps, acted: Activity, drawn: Window, names: _Names
) -> tuple[LaneGap, ...]:
    low, high = drawn
    places = np.flatnonzero((found.start_ns >= low) & (found.end_ns <= high))
    did = names_of(trace, acted, places)
    columns = (
        found.start_ns[places] - low,
        found.sync_wait_ns[places],
        found.host_ns[places],
        found.launch_path_ns[places],
        found.device_gap_ns[places],
        found.unattributed_ns[places],
        trace.device_events.name[found.event[places]],
    )
    return tuple(
        LaneGap(
            at, wait, host, path, device, unknown,
            names.number(trace.names[kernel]), names.number(doing),
        )
        for at, wait, host, path, device, unknown, kernel, (doing, _) in zip(
            *(column.tolist() for column in columns), did, strict=True
        )
    )  # fmt: skip


MOST_ROWS = 15
_MOST_GAPS = 50
_CLOCKS_VARY = 0.1  # of a GPU, from one run to another
_MOST_TIMES_PROFILED = 1.5
_MOST_DEVICES = 64  # no machine has more; a broken file may name thousands


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """`step`: the number of the ProfilerStep to look at. `wall_us`: one step without a profiler. `rows`: the
    longest that a list may be. `drawn`: whether the report has the lanes and the longest gaps."""

    step: int | None = None
    wall_us: float | None = None
    gpu: str | None = None
    rows: int = MOST_ROWS
    drawn: bool = True


_AS_IT_IS = TraceOptions()


def explain_trace(trace: Trace, file: TracePath, options: TraceOptions = _AS_IT_IS) -> TraceReport:
    """Explain one trace. Raises UsageError where it has no work of a GPU, or not the step."""
    device = _device(trace, file)
    steps = find_steps(trace, device, only=options.step)
    found = gaps(trace, device)
    windows, hosts = steps.windows, steps.hosts
    times = lanes_in(trace, device, windows, found)
    slowed = _inflation(trace, options, _profiled_us(steps, times))
    doubtful = (*slowed, *doubts(trace, device, steps, found, times))
    profile, carried_over = _profile(_gpu(trace, device), options.gpu)
    _check_wall(options.wall_us, steps, times)
    predicted = predict_from_trace(
        trace, device, steps, found, profile=profile, wall_us=options.wall_us
    )
    prediction = None if isinstance(predicted, str) else predicted
    syncs = sync_costs(trace, found, hosts, options.rows)
    acted = activity(trace, found, windows)
    did = doings(trace, acted, len(windows), times.idle_ns, options.rows)
    work = device_work(trace, device, found, (windows, hosts), options.rows)
    own = _device_time(trace, device, windows, times)
    judged = judge_trace(
        times,
        prediction,
        doubtful,
        syncs,
        did,
        steps=len(windows),
        graph_share=own.graph_kernel_share,
    )
    unsteady = why_unsteady(trace, device, hosts)
    judged = of_warm_up(judged, times, prediction, cold_work(trace), unsteady)
    judged = occupied(judged, work, times.span_ns / 1e3 / len(windows))
    return TraceReport(
        **structs.asdict(own),
        **structs.asdict(judged),
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version=__version__,
        file=str(file),
        # As TensorBoard shows the worker of "worker.123.pt.trace.json.gz".
        worker=trace.about.worker or file.name.split(".", 1)[0],
        events=trace.events,
        step_basis=steps.basis,
        steps_counted=len(steps.counted),
        steps=tuple(_step_time(steps, found)),
        devices=(own, *_other_devices(trace, device)),
        prediction=prediction,
        no_prediction=predicted if isinstance(predicted, str) else "",
        work=work,
        graphs=graph_use(trace, device, hosts, steps.basis, options.rows),
        doubts=(*doubtful, *carried_over),
        syncs=syncs,
        operators=operator_costs(trace, hosts, options.rows),
        lines=line_costs(trace, hosts, options.rows),
        launches=launch_totals(trace, device, hosts),
        queue=queue(trace, device, windows),
        longest_gaps=longest_gaps(trace, found, windows, _MOST_GAPS if options.drawn else 0, acted),
        warnings=trace.warnings,
        idle_kinds=did.kinds,
        step_kinds=tuple(_step_kinds(trace, device, steps, found)),
        gap_causes=did.causes,
        drawn=trace_lanes(trace, device, steps, found, acted) if options.drawn else None,
    )


def _check_wall(wall_us: float | None, steps: Steps, times: Lanes) -> None:
    """Refuse a time that cannot be that of the recorded step: the profiler slows it, and never speeds it up."""
    if wall_us is None:
        return
    busy = times.busy_ns / 1e3 / len(steps.counted)
    profiled = _profiled_us(steps, times)
    if wall_us < busy * (1 - _CLOCKS_VARY):
        raise UsageError(
            f"--wall-ms {wall_us / 1e3:g} is less than the {busy / 1e3:.3g} ms for which the device is busy in"
            " a step of this trace: it is not the time of the same step."
        )
    if wall_us > profiled * _MOST_TIMES_PROFILED:
        raise UsageError(
            f"--wall-ms {wall_us / 1e3:g} is far more than the {profiled / 1e3:.3g} ms that a step takes in"
            " this trace with the profiler, which slows a step: it is not the time of the same step."
        )


def _profiled_us(steps: Steps, times: Lanes) -> float:
    """What one step takes with the profiler, on the device or on the host, whichever is longer."""
    host = sum(step.host[1] - step.host[0] for step in steps.counted)
    return max(times.span_ns, host) / 1e3 / len(steps.counted)


def _device(trace: Trace, file: TracePath) -> int:
    """The one with the most work. Raises UsageError where none has any."""
    if len(trace.device_events):
        return busiest_device(trace)
    if trace.is_cut:
        raise UsageError(
            f"{file} has no GPU events, but it is cut short: its kernels may stand in what is missing."
            " Copy or export it again."
        )
    seen = f"{len(trace.operators):,} operators and {len(trace.calls):,} CUDA calls"
    raise UsageError(
        f"{file} has no GPU events (no kernel, copy or fill; it has {seen}): record on a GPU with"
        " torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])."
    )


def _inflation(trace: Trace, options: TraceOptions, profiled_us: float) -> tuple[Doubt, ...]:
    slow = "The profiler slows the CPU 1.7 to 2.3 times, and not the GPU"
    if trace.about.writer == "nsight":
        slow = "Nsight Systems slows the CPU by an unknown factor, and not the GPU"
    if options.wall_us is not None and options.wall_us > profiled_us * (1 + _CLOCKS_VARY):
        text = (
            f"{slow}, but the given wall time is longer ({options.wall_us / 1e3:.3g} ms) than"
            f" that with the profiler ({profiled_us / 1e3:.3g} ms): the two may not be of the same step."
        )
        return (Doubt("profiler-inflation", text),)
    if options.wall_us is not None:
        text = f"{slow}; predictions are scaled to the wall time given."
        return (Doubt("profiler-inflation", text, corrected=True),)
    text = f"{slow}, so a step waits less without the profiler. Give its wall time with --wall-ms."
    return (Doubt("profiler-inflation", text),)


def _gpu(trace: Trace, device: int) -> str:
    """The name of a device's GPU; "" where the trace does not say. AMD counts devices after the processors."""
    names, label = trace.about.device_names, trace.devices[device]
    if len(set(names)) == 1:
        return names[0]
    return names[int(label)] if label.isdigit() and int(label) < len(names) else ""


def _profile(gpu: str, wanted: str | None) -> tuple[DeviceProfile, tuple[Doubt, ...]]:
    """The profile of the trace's GPU; of an unknown one all that known ones may cost, and a word."""
    try:
        return load_profile(wanted or gpu), ()
    except UsageError:
        if wanted:
            raise
        what = f"There is no profile of the GPU {gpu!r}" if gpu else "The trace names no GPU"
        text = (
            f"{what}: graphs may cost what they do on any known GPU. Name a similar one with --gpu."
        )
        return unknown_profile(), (Doubt("unknown-gpu", text),)


def _other_devices(trace: Trace, chosen: int) -> Iterator[DeviceTime]:
    """Every other device, in the time of its own steps."""
    counts = np.bincount(trace.device_events.device, minlength=len(trace.devices))
    for device in np.argsort(-counts, kind="stable")[:_MOST_DEVICES].tolist():
        if device != chosen:
            mine = find_steps(trace, device).windows
            yield _device_time(trace, device, mine, lanes_in(trace, device, mine))


def _device_time(trace: Trace, device: int, windows: Sequence[Window], times: Lanes) -> DeviceTime:
    rows = events_of(trace, device)
    start = trace.device_events.start_ns[rows]
    rows = rows[inside(start, windows)]
    is_kernel = trace.device_events.kind[rows] == KINDS.index("kernel")
    kernels = int(is_kernel.sum())
    span = times.span_ns or 1
    return DeviceTime(
        device=trace.devices[device],
        gpu=_gpu(trace, device),
        span_ns=times.span_ns,
        device_busy_ns=times.busy_ns,
        idle_ns=times.idle_ns,
        launch_bound_ns=times.launch_bound_ns,
        host_ns=times.host_ns,
        launch_path_ns=times.launch_path_ns,
        sync_wait_ns=times.sync_wait_ns,
        device_gap_ns=times.device_gap_ns,
        graph_gap_ns=times.in_graph_ns,
        unattributed_ns=times.unattributed_ns,
        device_busy_share=times.busy_ns / span,
        idle_share=times.idle_ns / span,
        launch_bound_share=times.launch_bound_ns / span,
        sync_wait_share=times.sync_wait_ns / span,
        device_gap_share=times.device_gap_ns / span,
        unattributed_share=times.unattributed_ns / span,
        device_events=times.events,
        kernels=kernels,
        joined_share=times.joined / (times.events or 1),
        graph_kernel_share=int(in_graphs(trace, rows)[is_kernel].sum()) / (kernels or 1),
        warm_up_ns=times.warm_up_ns,
    )


def _step_time(steps: Steps, found: Gaps) -> list[StepTime]:
    place = window_of(found.end_ns, [step.window for step in steps.all], closed="right")
    idle = np.zeros(len(steps.all), np.int64)
    cold = np.zeros(len(steps.all), np.int64)
    np.add.at(idle, place[place >= 0], (found.end_ns - found.start_ns)[place >= 0])
    np.add.at(cold, place[place >= 0], found.warm_up_ns[place >= 0])
    spans = [step.window[1] - step.window[0] for step in steps.all]
    return [
        StepTime(step.name, span - warm_up, max(0, span - waited), step.kernels, step.left_out)
        for step, span, waited, warm_up in zip(
            steps.all, spans, idle.tolist(), cold.tolist(), strict=True
        )
    ]


def _step_kinds(trace: Trace, device: int, steps: Steps, found: Gaps) -> Iterator[StepKind]:
    """The figures of each kind of step, the one that counts first; nothing where all are of one."""
    numbers = {step.kind: None for step in (*steps.counted, *steps.all) if step.kernels}
    for number in numbers if len(numbers) > 1 else ():
        mine = [step for step in steps.all if step.kind == number and step.kernels]
        times = lanes_in(trace, device, [step.window for step in mine], found)
        span = times.span_ns or 1
        yield StepKind(
            example=mine[0].name,
            steps=len(mine),
            fewest_events=min(step.kernels for step in mine),
            most_events=max(step.kernels for step in mine),
            span_us=times.span_ns / 1e3 / len(mine),
            device_busy_share=times.busy_ns / span,
            launch_bound_share=times.launch_bound_ns / span,
            sync_wait_share=times.sync_wait_ns / span,
            counts=any(not step.left_out for step in mine),
        )
