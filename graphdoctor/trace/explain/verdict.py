"""State the verdict of a trace, and what makes its figures less certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from graphdoctor.trace.api import is_capture, is_graph_launch, is_kernel_launch
from graphdoctor.trace.arrays import Ints, Spans, Trace
from graphdoctor.trace.explain.gap_causes import ELSEWHERE, Doings
from graphdoctor.trace.explain.gaps import Gaps, Lanes, events_of
from graphdoctor.trace.explain.graph_use import in_graphs
from graphdoctor.trace.explain.hosts import depth_at_launch, within
from graphdoctor.trace.explain.replay import FULL_QUEUE
from graphdoctor.trace.explain.warm_up import PROFILE_LATER, cold_starts, cold_work
from graphdoctor.trace.intervals import NONE, Window, covered_ns_of, innermost, inside
from graphdoctor.trace.join import launch_of, operator_nesting
from graphdoctor.trace.steps import Steps
from graphdoctor.values.figures import count_text, time_text
from graphdoctor.values.trace import (
    WORK_WORDS,
    Confidence,
    Doubt,
    GapCause,
    SyncCost,
    TracePrediction,
    TraceVerdict,
    WorkKind,
)

_MUCH = 0.02  # of the events or of the span: worth a word
_LONG_QUEUED_NS = 200_000  # no scheduler leaves queued work alone for so long
_SKEW_NS = 1_000
_FULL = "Command Buffer Full"  # what the profiler calls a wait for the launch queue


def doubts(trace: Trace, device: int, steps: Steps, found: Gaps, times: Lanes) -> tuple[Doubt, ...]:
    """All of them, the profiler's own slowness left out: that one is always there."""
    rows = events_of(trace, device)
    windows = steps.windows
    return (
        *_cold_starts(trace, steps, times, found),
        *_lost(trace, steps, times),
        *_graph_doubts(trace, rows, steps),
        *_queued(found, windows, times),
        *_full_queue(trace, device, steps),
        *_clock(trace, rows),
        *_uneven(steps),
    )


def _cold_starts(trace: Trace, steps: Steps, times: Lanes, found: Gaps) -> Iterator[Doubt]:
    if not times.warm_up_ns:
        return
    cold: Spans = cold_starts(trace)
    cold = cold.take(within(cold, steps.hosts))
    # What of a call lies before the first kernel makes no GPU wait.
    length = covered_ns_of((found.start_ns, found.end_ns), cold.start_ns, cold.end_ns)
    first = ""
    if len(cold):
        longest = cold.take(np.array([length.argmax()]))
        operator = innermost(
            trace.operators, operator_nesting(trace), longest.start_ns, longest.thread
        )[0]
        name = trace.names[longest.name[0]]
        what = f"the capture from {name} on" if is_capture(name) else name
        where = f" in {trace.names[trace.operators.name[operator]]}" if operator != NONE else ""
        first = f"; the longest is {what}{where}, {time_text(length.max() / 1e3)}"
    work = ("load code or set up a library", "capture CUDA graphs")
    does = " or ".join(what for what, some in zip(work, cold_work(trace), strict=True) if some)
    yield Doubt(
        "warm-up",
        f"The GPU waits {time_text(times.warm_up_ns / 1e3)} for cold starts, which {does} and happen"
        f" once{first}. Shares and predictions leave them out. {PROFILE_LATER}",
        corrected=True,
    )


def _lost(trace: Trace, steps: Steps, times: Lanes) -> Iterator[Doubt]:
    missing = times.events - times.joined
    if times.events and missing / times.events > _MUCH:
        yield Doubt(
            "lost-launches",
            f"{missing:,} of {times.events:,} device events have no launch in the trace: the profiler"
            f" dropped records, so {times.unattributed_ns / 1e3:,.0f} us of idle time stay unexplained.",
        )
    calls = trace.calls
    launching = trace.named(calls, is_kernel_launch)
    counted = launching & within(calls, steps.hosts)
    issued = int(counted.sum())
    began = np.zeros(len(calls), np.bool_)
    all_calls = launch_of(trace)
    began[all_calls[all_calls != NONE]] = True
    silent = int((counted & ~began).sum())
    if issued and silent / issued > _MUCH:
        yield Doubt(
            "lost-kernels",
            f"{silent:,} of {issued:,} kernel launches have no kernel in the trace: the GPU is"
            " busier than the trace shows.",
        )


def _graph_doubts(trace: Trace, rows: Ints, steps: Steps) -> Iterator[Doubt]:
    in_graph = in_graphs(trace, rows)
    graph_calls = trace.named(trace.calls, is_graph_launch)
    counted = np.flatnonzero(graph_calls & within(trace.calls, steps.hosts))
    nodes = np.bincount(
        np.searchsorted(counted, launch_of(trace)[np.isin(launch_of(trace), counted)]),
        minlength=len(counted),
    )
    empty = int((nodes == 0).sum())
    if empty:
        yield Doubt(
            "incomplete-graphs",
            f"{empty:,} of {len(counted):,} graph launches have no kernel in the trace: idle time is"
            " unreliable. Measure wall time instead.",
        )
    if in_graph.sum() > len(counted) > 0 and nodes.max(initial=0) > 1:
        yield Doubt(
            "graph-nodes-traced",
            "The profiler traced the nodes of graphs one by one, which stretches the gaps between them:"
            " judge captured graphs by wall time, and not by this trace.",
        )


def _queued(found: Gaps, windows: Sequence[Window], times: Lanes) -> Iterator[Doubt]:
    counted = inside(found.end_ns, windows, closed="right")
    long = int(found.device_gap_ns[counted & (found.device_gap_ns > _LONG_QUEUED_NS)].sum())
    if times.span_ns and long / times.span_ns > _MUCH:
        yield Doubt(
            "idle-with-work-queued",
            f"For {long / times.span_ns:.0%} of the time the GPU is idle although work is"
            " queued: it waits for another device or stream, or the profiler dropped what ran.",
        )


def _full_queue(trace: Trace, device: int, steps: Steps) -> Iterator[Doubt]:
    full = int(trace.named(trace.overheads, _FULL.__eq__).sum())
    calls, depth = depth_at_launch(trace, device)
    counted = within(trace.calls.take(calls), steps.hosts)
    deep = int((depth[counted] >= FULL_QUEUE).sum())
    if full or deep:
        what = (
            f"{full:,} times as the profiler says"
            if full
            else f"at {deep:,} launches by the number of queued kernels"
        )
        yield Doubt(
            "queue-full",
            f"The launch queue was full ({what}): long launches there are waits for a busy"
            " GPU, and do not count as host time.",
            corrected=True,
        )


def _clock(trace: Trace, rows: Ints) -> Iterator[Doubt]:
    call = launch_of(trace)[rows]
    known = call != NONE
    if not known.any():
        return
    early = trace.calls.start_ns[call[known]] - trace.device_events.start_ns[rows[known]]
    count = int((early > _SKEW_NS).sum())
    if count:
        yield Doubt(
            "clock-skew",
            f"{count:,} device events begin before their launch, by up to {early.max() / 1e3:,.0f}"
            " us: the clocks of CPU and GPU disagree.",
        )


def _uneven(steps: Steps) -> Iterator[Doubt]:
    odd = [step for step in steps.all if step.left_out]
    if odd:
        yield Doubt(
            "steps-left-out",
            f"{len(odd)} of {len(steps.all)} steps are left out; {odd[0].name}: {odd[0].left_out}.",
            corrected=True,
        )


# Shares of the time at which the answer turns. A near-tie is "mixed", and never a guess.
_BUSY = 0.9
_BOUND = 0.3
_LITTLE = 0.1
_UNKNOWN = 0.25
_MOST = 0.5
_WORTH_A_SENTENCE = 0.2
_WORTH_NAMING = 0.05
_HELP: dict[WorkKind, str] = {
    "data-loading": "Load ahead in other processes: DataLoader(num_workers=..., pin_memory=True,"
    " prefetch_factor=...).",
    "preprocessing": "Prepare inputs in the workers of a DataLoader, or on the GPU while the previous step runs.",
    "allocation": "Reuse buffers, or let torch's caching allocator keep them: set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and avoid empty_cache() in the step.",
    "garbage-collection": "Call gc.freeze() after the warm-up, and run gc.collect() every so many steps.",
    "compilation": "Record steps after the warm-up. If new shapes cause recompilation, mark them as dynamic.",
    "graph-instantiation": "Capture and instantiate graphs once, before the steps.",
    "logging": "Log every N steps, from values that were copied without a host sync.",
    "another-thread": "Move that thread's work into another process: two threads cannot run Python at once.",
}
_OF_STEADY_STEPS = ("launch-bound", "gpu-bound", "sync-bound")
_GAIN = 1.15  # what a graph must bring at least to be promised
_WORST = frozenset({"lost-kernels", "incomplete-graphs", "idle-with-work-queued"})


class Judgement(Struct, frozen=True):
    verdict: TraceVerdict
    reason: str
    advice: str
    confidence: Confidence


def judge_trace(
    times: Lanes,
    predicted: TracePrediction | None,
    doubts: Sequence[Doubt],
    syncs: Sequence[SyncCost],
    did: Doings,
    *,
    steps: int = 1,
    graph_share: float = 0.0,
) -> Judgement:
    """Judge what this trace's device waits for, and how sure that is.

    `steps` is how many steps `times` are of, `graph_share` which share of the kernels runs in CUDA graphs already.
    """
    confidence = _confidence(times, predicted, doubts)
    unclear = _why_unclear(times, doubts)
    if unclear:
        return Judgement(
            "cannot-tell",
            f"The trace does not show what the GPU waits for: {unclear}.{_blocked(times, syncs, steps)}",
            "Record again after a warm-up step, and measure the wall time of a step without the profiler.",
            "low",
        )
    if predicted is None or predicted.wall_us is None:
        idle = times.idle_ns / (times.span_ns or 1)
    else:
        idle = max(0.0, 1 - predicted.device_busy_us / predicted.wall_us)
    if idle > _LITTLE and did.elsewhere_share > _MOST:
        reason, advice = _elsewhere(idle, did)
        return Judgement("host-bound", reason, advice, confidence)
    if predicted is None:
        return _as_profiled(times, graph_share)
    # The launch-bound share at its least, likely and most; as profiled too, if nothing else was measured.
    share, profiled = predicted.launch_bound_share, times.launch_bound_ns / (times.span_ns or 1)
    shares = [share.low, share.mid, share.high]
    if predicted.wall_us is None:
        shares.append(profiled)
    # The host without a profiler seems to make the device wait far longer than with one.
    if predicted.wall_us is None and share.mid > profiled + _MOST:
        return Judgement(
            "cannot-tell",
            "The trace does not show what the GPU waits for: most of the recorded step is before its first"
            f" kernel, and the time from there to the end of the last kernel is {times.span_ns / 1e3:,.0f} us.",
            "Record several steps in a row.",
            "low",
        )
    verdicts = {_verdict(share, times, predicted) for share in shares}
    verdict: TraceVerdict = verdicts.pop() if len(verdicts) == 1 else "mixed"
    reason, advice = _words(verdict, times, predicted, syncs)
    if verdict in ("launch-bound", "mixed"):
        reason += _largest(did)
    return Judgement(verdict, reason, advice, confidence)


def of_warm_up(
    judged: Judgement,
    times: Lanes,
    predicted: TracePrediction | None,
    cold: tuple[bool, bool],
    unsteady: str,
) -> Judgement:
    """The judgement, unless the trace is mostly cold starts (what `cold_work` says) or has no steady step.

    `unsteady`: why it has none, "" where it has one.
    """
    warm_up = times.warm_up_ns / (times.span_ns + times.warm_up_ns or 1)
    if unsteady and warm_up <= _MOST:
        reason = f"The trace does not show what the GPU waits for, because no step is steady. {unsteady}."
        return Judgement("cannot-tell", reason, PROFILE_LATER, "low")
    if warm_up <= _MOST or (predicted is not None and judged.verdict in _OF_STEADY_STEPS):
        return judged
    work = (
        "the first calls of kernels and libraries load code, tune and allocate",
        "CUDA graphs are captured and instantiated",
    )
    does = ", and ".join(what for what, some in zip(work, cold, strict=True) if some)
    return Judgement(
        "host-bound",
        f"Warm-up takes {warm_up:.0%} of the recorded time: {does}. No graph removes that, and a steady step does not"
        " have it.",
        PROFILE_LATER,
        judged.confidence,
    )


def _blocked(times: Lanes, syncs: Sequence[SyncCost], steps: int) -> str:
    """The call in which the host is blocked for most of the idle time, in a sentence; "" without one."""
    longest = max(syncs, key=lambda sync: sync.device_idle_us, default=None)
    if longest is None or longest.device_idle_us * 1e3 * steps <= _MOST * times.idle_ns:
        return ""
    return f" Meanwhile the CPU is blocked for {time_text(longest.host_wait_us)} a step in {_place(longest)}."


def _as_profiled(times: Lanes, graph_share: float) -> Judgement:
    """What the trace's own shares say, where no step could be simulated."""
    span = times.span_ns or 1
    bound, waited = times.launch_bound_ns / span, times.sync_wait_ns / span
    verdict: TraceVerdict = "mixed"
    if times.busy_ns / span > _BUSY:
        verdict = "gpu-bound"
    elif waited > max(_BOUND, 2 * bound):
        verdict = "sync-bound"
    return Judgement(
        verdict,
        f"As profiled, the GPU is busy {times.busy_ns / span:.0%} of the time, waits for launches {bound:.0%}"
        f" and for a CPU that waits for results {waited:.0%}. "
        + (
            f"CUDA graphs already run {graph_share:.0%} of the kernels."
            if graph_share > _MOST
            else "What a graph would bring is not predicted."
        ),
        "Look at the kernels, and at what runs between the graphs: another graph gains little."
        if graph_share > _MOST
        else "Measure the step with and without a graph: `graphdoctor analyze` does, on a GPU.",
        "low",
    )


def _why_unclear(times: Lanes, doubts: Sequence[Doubt]) -> str:
    """Why there is no answer; "" if there is one."""
    if not times.joined:
        return "its kernels have no launches in the trace"
    span = times.span_ns or 1
    if times.unattributed_ns / span > _UNKNOWN:
        return f"{times.unattributed_ns / span:.0%} of the time is idle before kernels without a launch"
    queued = (times.device_gap_ns - times.in_graph_ns) / span
    if queued > _UNKNOWN and any(doubt.kind == "idle-with-work-queued" for doubt in doubts):
        return (
            f"{queued:.0%} of the time it is idle although work is queued, because of other devices"
            " or streams, or because the profiler dropped records"
        )
    lost = next((doubt for doubt in doubts if doubt.kind == "incomplete-graphs"), None)
    return "graph launches have no kernels in the trace" if lost else ""


def _verdict(share: float, times: Lanes, predicted: TracePrediction) -> TraceVerdict:
    waited = times.sync_wait_ns / (times.span_ns or 1)
    idle = predicted.eager_us.mid - predicted.device_busy_us
    is_idle = idle > _LITTLE * predicted.eager_us.mid
    if predicted.syncs and is_idle and idle_through_syncs(predicted) > _MOST:
        return "sync-bound"
    if share >= _BOUND and predicted.speedup.mid >= _GAIN:
        return "launch-bound"
    if share < _LITTLE and waited < _LITTLE:
        return "gpu-bound"
    return "mixed"


def idle_through_syncs(predicted: TracePrediction) -> float:
    """Return the part of the idle time that would go without waits for results."""
    idle = predicted.eager_us.mid - predicted.device_busy_us
    return (predicted.eager_us.mid - predicted.without_syncs_us.mid) / idle


def _elsewhere(idle_share: float, did: Doings) -> tuple[str, str]:
    """What the host does besides launching, which no graph removes, and where; what helps against it."""
    known = [kind for kind in did.kinds if kind.kind in ELSEWHERE]
    first = known[0].kind if known and known[0].share > did.elsewhere_share / 2 else "ordinary"
    cause = next((cause for cause in did.causes if cause.kind == first), None)
    what = WORK_WORDS[first] if first != "ordinary" else "work between two launches"
    named = cause is not None and cause.name and cause.share >= _WORTH_NAMING
    where = f" {_is_in(cause)}" if cause is not None and named else ""
    return (
        f"The GPU is idle for {idle_share:.0%} of the time, {did.elsewhere_share:.0%} of"
        f" that because the CPU is busy with {what} and launches nothing. A graph does not remove"
        f" that.{where}",
        _HELP.get(first, "Move that work out of the step, or into another process."),
    )


def _largest(did: Doings) -> str:
    """The kind of work or the place that explains most of the idle time, if it is worth a sentence."""
    known = next((kind for kind in did.kinds if kind.kind in ELSEWHERE), None)
    first = next(iter(did.causes), None)
    if known is not None and known.share >= _WORTH_A_SENTENCE:
        return f" {known.share:.0%} of the idle time is {WORK_WORDS[known.kind]}."
    if first is None or not first.name or first.share < _WORTH_A_SENTENCE:
        return ""
    return f" {_is_in(first)}"


def _is_in(cause: GapCause) -> str:
    place = cause.location
    at = f" at {place.file}:{place.line} ({place.function})" if place is not None else ""
    return f"{cause.share:.0%} of the idle time is in {cause.name}{at}."


def _words(
    verdict: TraceVerdict, times: Lanes, predicted: TracePrediction, syncs: Sequence[SyncCost]
) -> tuple[str, str]:
    """The verdict in a sentence or two, and what to do."""
    ratio = predicted.speedup
    gain = f"{_ratio(ratio.mid)} ({_ratio(ratio.low)} to {_ratio(ratio.high)})"
    waiting = _waiting(times, predicted)
    if verdict == "launch-bound":
        return (
            f"The GPU waits for the CPU {waiting}. {_graphs(predicted)}: predicted speedup {gain}.",
            "Run `graphdoctor analyze` on the model: it says what can be captured and what stops it.",
        )
    if verdict == "sync-bound":
        first = next(iter(syncs), None)
        where = f" The first is {_place(first)}." if first else ""
        a_step = count_text(round(predicted.syncs), "time")
        return (
            f"The CPU waits for results {a_step} a step. Without these waits the CPU is ahead of the GPU, and"
            f" {idle_through_syncs(predicted):.0%} of the idle time goes: fix them first.{where}",
            "Keep values on the GPU, and read them once after the step.",
        )
    if verdict == "gpu-bound":
        profiled = times.busy_ns / (times.span_ns or 1)
        clean = min(1.0, max(profiled, predicted.device_busy_us / (predicted.eager_us.mid or 1)))
        busy = f"{profiled:.0%} of the time"
        if f"{clean:.0%}" != f"{profiled:.0%}":
            busy += f" as profiled and {clean:.0%} {_basis(predicted)}"
        return (
            f"The GPU is busy {busy}. A graph brings {max(1.0, ratio.high):.2f}x at most.",
            "Look at the kernels: the CPU is ahead of the GPU.",
        )
    return (
        f"Mixed: the GPU waits for the CPU {waiting}. {_graphs(predicted)}: predicted speedup {gain}.",
        "Measure the wall time of a step without the profiler and pass it with --wall-ms.",
    )


def _waiting(times: Lanes, predicted: TracePrediction) -> str:
    """The launch-bound share with and without the profiler, each by its name."""
    profiled = f"{times.launch_bound_ns / (times.span_ns or 1):.0%}"
    share = predicted.launch_bound_share
    low, mid, high = (f"{value:.0%}" for value in (share.low, share.mid, share.high))
    clean = mid if low == high else f"{mid} ({low} to {high})"
    if clean == profiled:
        return f"for {clean} of a step"
    return f"for {clean} of a step {_basis(predicted)} ({profiled} as profiled)"


def _basis(predicted: TracePrediction) -> str:
    return "without the profiler" if predicted.wall_us is None else "by the wall time given"


def _graphs(predicted: TracePrediction) -> str:
    if predicted.regions <= 1:
        return "With one graph for the whole step"
    about = "about " if predicted.regions % 1 else ""  # the mean of steps that differ
    return f"With {about}{count_text(round(predicted.regions), 'graph')} a step"


def _ratio(value: float) -> str:
    return f"{value:.2g}x" if value < 10 else f"{value:,.0f}x"


def _place(sync: SyncCost) -> str:
    what = f"{sync.operator} ({sync.call})" if sync.operator else sync.call
    if sync.location is None:
        return f"{what}; record with with_stack=True to see its line"
    return f"{what} in {sync.location.function}, {sync.location.file}:{sync.location.line}"


def _confidence(
    times: Lanes, predicted: TracePrediction | None, doubts: Sequence[Doubt]
) -> Confidence:
    """High only with a wall time from without the profiler, and nothing that is doubtful."""
    open_doubts = {doubt.kind for doubt in doubts if not doubt.corrected}
    if open_doubts & _WORST or predicted is None or times.joined < 0.9 * times.events:
        return "low"
    if abs(predicted.simulation_error) > 0.1:
        return "low"
    return "medium" if open_doubts or predicted.wall_us is None else "high"
