"""The page of one explained trace: the verdict, then its reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import (
    bytes_text,
    count_text,
    more_bytes_text,
    ratio_range,
    share_range,
    shortened,
    time_range,
    time_text,
)
from graphdoctor.values.locations import Location, path_text, place_text
from graphdoctor.values.trace import (
    WORK_WORDS,
    CollectiveCost,
    Communication,
    DeviceTime,
    DeviceWork,
    Gap,
    GraphUse,
    HostCost,
    LineWork,
    MemoryUse,
    Queue,
    TracePrediction,
    TraceReport,
    TraceVerdict,
)

_Row = TypeVar("_Row")
_ROWS = 6
_LONGEST_NAME = 60


def at(location: Location | None, page: Page) -> str:
    if location is None:
        return ""
    return f" at {place_text(location, page.look.base)} ({location.function})"


def shown(page: Page, rows: Sequence[_Row]) -> Sequence[_Row]:
    return rows if page.look.show_all else rows[:_ROWS]


def kernel_text(kernel: str, longest: int = _LONGEST_NAME) -> str:
    """A kernel's name without what every name of torch's kernels begins with, shortened."""
    for part in ("void ", "at::native::", "(anonymous namespace)::"):
        kernel = kernel.replace(part, "")
    return shortened(kernel, longest)


_SPEEDUP = "Speedup"
_CAUSES = 10
_WORTH_A_ROW = 0.005
VERDICT_STYLES: dict[TraceVerdict, str] = {
    "launch-bound": "bold yellow",
    "sync-bound": "bold red",
    "host-bound": "bold red",
    "gpu-bound": "bold green",
    "mixed": "bold blue",
    "cannot-tell": "bold blue",
}


def render(report: TraceReport, look: Look) -> str:
    """The page of one trace. No text of a trace can colour or move anything in it."""
    page = Page(look)
    page.line((report.verdict.upper().replace("-", " "), VERDICT_STYLES[report.verdict]),
              (f"  {path_text(report.file, look.base)}, confidence {report.confidence}", "dim"))  # fmt: skip
    page.paragraph(report.reason, style="bold")
    page.paragraph(report.advice)
    if report.graphs is not None and report.graphs.finding:
        page.paragraph(report.graphs.finding, style="bold yellow")
    _write_time(page, report)
    _write_causes(page, report)
    if report.prediction is not None:
        _write_prediction(page, report.prediction)
    elif report.no_prediction:
        page.heading("One step with graphs", "not predicted")
        page.paragraph(report.no_prediction, indent=2)
    write_graphs(page, report.graphs)
    write_costs(page, report)
    _write_gaps(page, report)
    _write_doubts(page, report)
    return page.render()


def _write_time(page: Page, report: TraceReport) -> None:
    """Where every nanosecond of the device went."""
    gpu = f"{report.gpu or 'unknown GPU'}, "
    page.heading("Time of the device, as profiled", f"{gpu}device {report.device}")
    page.labelled("  Steps", steps_text(report))
    for kind in report.step_kinds:
        count = f"{kind.fewest_events:,}"
        if kind.most_events != kind.fewest_events:
            count += f" to {kind.most_events:,}"
        page.labelled(
            "  Kind of step" if kind.counts else "  Other kind",
            f"{count_text(kind.steps, 'step')} like {kind.example}, {count} device events:"
            f" {time_text(kind.span_us)}, busy {kind.device_busy_share:.1%}, launch-bound"
            f" {kind.launch_bound_share:.1%}, sync wait {kind.sync_wait_share:.1%}",
        )
    for name, value_ns, what in time_rows(report):
        page.labelled(
            f"  {name}", _amount(value_ns, report, what), style="bold" if name == "Busy" else ""
        )
    page.labelled("  Sum", _amount(report.span_ns, report, "from the first start to the last end"))
    if report.warm_up_ns:
        warm_up_us = report.warm_up_ns / 1e3 / report.steps_counted
        page.labelled("  Warm-up", f"{warm_up_us:>21,.1f} us  left out of the sum: cold starts")
    graphs = f"; {report.graph_kernel_share:.0%} of the kernels run inside graphs already"
    page.labelled(
        "  Kernels", f"{report.kernels:,} of {report.device_events:,} device events{graphs}"
    )
    for other in report.devices[1:]:
        page.labelled("  Other device", f"device {other.device}: busy {other.device_busy_share:.1%},"
                      f" launch-bound {other.launch_bound_share:.1%}")  # fmt: skip


def time_rows(time: DeviceTime) -> tuple[tuple[str, int, str], ...]:
    """What the parts of a device's time are called, their ns in all steps, and what they are."""
    return (
        ("Busy", time.device_busy_ns, "a kernel, copy or fill ran"),
        ("Host", time.host_ns, "idle: the CPU had not reached the launch"),
        ("Launch path", time.launch_path_ns, "idle: the launch was on its way"),
        ("Sync wait", time.sync_wait_ns, "idle: the CPU waited for the GPU"),
        ("Device gap", time.device_gap_ns, "idle: the work was queued"),
        ("Unattributed", time.unattributed_ns, "idle: no launch in the trace"),
    )


def _amount(value_ns: int, report: TraceReport, what: str) -> str:
    share = value_ns / (report.span_ns or 1)
    return f"{share:>6.1%}  {value_ns / 1e3 / report.steps_counted:>12,.1f} us  {what}"


def steps_text(report: TraceReport) -> str:
    if report.step_basis == "whole span":
        return "no steps were found: the whole span counts as one"
    basis = {
        "annotations": "by their annotations",
        "repeating launches": "found by what repeats in the launches",
    }[report.step_basis]
    left_out = len(report.steps) - report.steps_counted
    more = f", {left_out} left out" if left_out else ""
    return f"{count_text(report.steps_counted, 'step')} {basis}{more}; times are of one step"


def _write_causes(page: Page, report: TraceReport) -> None:
    """What the host did while the device had nothing to do."""
    if not report.gap_causes:
        return
    page.heading("What the CPU did meanwhile", "share of the idle time; a step")
    for kind in report.idle_kinds:
        if page.look.show_all or kind.share >= _WORTH_A_ROW:
            text = f"{time_text(kind.idle_us)}  {WORK_WORDS[kind.kind]}"
            page.labelled(f"  {kind.share:.1%}", text, style="bold")
    page.blank()
    for cause in report.gap_causes if page.look.show_all else report.gap_causes[:_CAUSES]:
        if not page.look.show_all and cause.share < _WORTH_A_ROW:
            continue
        word = "" if cause.kind == "ordinary" else WORK_WORDS[cause.kind]
        what = ": ".join(part for part in (word, shortened(cause.name)) if part)
        page.labelled(
            f"  {cause.share:.1%}",
            f"{time_text(cause.idle_us)}  {what}{at(cause.location, page)}",
        )


def _write_prediction(page: Page, found: TracePrediction) -> None:
    anchored = (
        "without the profiler" if found.wall_us is None else "anchored at the wall time given"
    )
    page.heading("One step with graphs", f"predicted, {anchored}")
    for label, text in prediction_rows(found):
        page.labelled(f"  {label}", text, style="bold" if label == _SPEEDUP else "")
    for term in found.terms:
        source = f"  ({term.source})" if page.look.show_all else ""
        page.labelled("  Term", f"{term.name}: {term.value}{source}")
    page.labelled(
        "  Simulation", f"{found.simulation_error:+.1%} off the trace when replayed as profiled"
    )


def prediction_rows(found: TracePrediction) -> Iterator[tuple[str, str]]:
    """Labels and text of one step with graphs."""
    yield "Eager", time_range(found.eager_us)
    yield "Launch-bound", share_range(found.launch_bound_share)
    yield "With graphs", time_range(found.graph_us)
    yield _SPEEDUP, ratio_range(found.speedup)
    yield "Without syncs", f"{time_range(found.without_syncs_us)}, and no graphs"
    yield (
        "Graphs",
        f"{found.regions:.3g} a step, in place of {found.launches_captured:,.0f} launches",
    )


def _write_gaps(page: Page, report: TraceReport) -> None:
    if not report.longest_gaps:
        return
    page.heading("Longest gaps", "what the CPU was in, and what ended them")
    for gap in shown(page, report.longest_gaps):
        parts = gap_parts(gap)
        what = gap.operator or gap.kernel[:40]
        did = f"; in {shortened(gap.doing)}{at(gap.doing_at, page)}" if gap.doing else ""
        page.labelled(
            f"  {time_text(gap.length_ns / 1e3)}",
            f"{parts}{did}; before {what}" + ("" if did else at(gap.location, page)),
        )


def gap_parts(gap: Gap) -> str:
    """What explains a gap, part by part."""
    causes = {
        "host": gap.host_ns,
        "launch path": gap.launch_path_ns,
        f"sync {gap.sync}": gap.sync_wait_ns,
        "device": gap.device_gap_ns,
        "unattributed": gap.unattributed_ns,
    }
    parts = ", ".join(f"{name} {time_text(value / 1e3)}" for name, value in causes.items() if value)
    warm_up = f" (warm-up {time_text(gap.warm_up_ns / 1e3)} of it)" if gap.warm_up_ns else ""
    return parts + warm_up


def _write_doubts(page: Page, report: TraceReport) -> None:
    if not (report.doubts or report.warnings):
        return
    page.heading("What makes this less certain")
    for doubt in report.doubts:
        word = "corrected" if doubt.corrected else "named"
        page.labelled(
            f"  {word.capitalize()}", doubt.text, style="" if doubt.corrected else "yellow"
        )
    for warning in report.warnings:
        page.labelled("  File", warning, style="yellow")


_SPARKS = " .:-=+*#%@"


def write_costs(page: Page, report: TraceReport) -> None:
    """All tables that have rows."""
    if report.syncs:
        page.heading("Where the CPU waits", "a step")
    for sync in shown(page, report.syncs):
        operator = f" in {sync.operator}" if sync.operator else ""
        page.labelled(
            f"  {sync.count:,.3g}x",
            f"{sync.call}{operator}{at(sync.location, page)}: host {time_text(sync.host_wait_us)},"
            f" device idle meanwhile {time_text(sync.device_idle_us)}",
        )
    write_work(page, report.work)
    _write_host(page, "Host time by operator", report.operators)
    _write_host(page, "Host time by the user's functions", report.lines)
    page.heading("Launches", "a step")
    for launch in report.launches:
        page.labelled(f"  {launch.launches:,.4g}x", f"{launch.call}: {launch.events:,.4g} device events,"
                      f" host {time_text(launch.host_us)}, device {time_text(launch.device_us)}")  # fmt: skip
    page.labelled("  Queue", _queue_text(report.queue))


def _write_host(page: Page, title: str, costs: Sequence[HostCost]) -> None:
    if not costs:
        return
    page.heading(title, "a step, waits left out, as profiled")
    for cost in shown(page, costs):
        name = cost.name if cost.location is None else place_text(cost.location, page.look.base)
        function = f" {cost.location.function}" if cost.location is not None else ""
        page.labelled(
            f"  {cost.share:.0%}", f"{time_text(cost.host_us)}  {cost.calls:,.3g}x {name}{function}"
        )


def _queue_text(queue: Queue) -> str:
    if not queue.points:
        return "unknown"
    top = queue.most or 1
    marks = (_SPARKS[-(-point.depth * (len(_SPARKS) - 1) // top)] for point in queue.points)
    delay = (
        f"; from launch to start {time_text(queue.median_delay_us)} in the median"
        if queue.median_delay_us is not None
        else ""
    )
    return f"[{''.join(marks)}] up to {queue.most:,} waiting{delay}"


_RANKS_IN_FULL = 8


def write_work(page: Page, work: DeviceWork) -> None:
    """The device's own time, from families down to lines; communication, copies and memory."""
    if work.families:
        page.heading("Device time by family of kernels", "a step")
        for family in shown(page, work.families):
            what = f"{time_text(family.device_us)}  {family.runs:,.4g}x {family.family}"
            page.labelled(f"  {family.share:.1%}", what)
    if work.kernels:
        page.heading("Device time by kernel", "a step")
        for kernel in shown(page, work.kernels):
            operator = f" from {kernel.operator}" if kernel.operator else ""
            page.labelled(f"  {kernel.share:.1%}", f"{time_text(kernel.device_us)}  {kernel.runs:,.4g}x"
                          f" {kernel_text(kernel.name)}{operator}")  # fmt: skip
    for title, lines in (
        ("launching function", work.lines),
        ("module", work.modules),
        ("annotation", work.annotations),
    ):
        _write_places(page, title, lines)
    if work.communication is not None:
        _write_communication(page, work.communication)
    if work.copies:
        page.heading("Copies", "a step")
        for copy in shown(page, work.copies):
            memory = f" ({copy.host_memory})" if copy.host_memory else ""
            page.labelled(
                f"  {copy.copies:,.3g}x",
                f"{copy.direction}{memory}: {bytes_text(round(copy.nbytes))}, {time_text(copy.device_us)}",
            )
    if work.memory is not None:
        _write_memory(page, work.memory)


def _write_places(page: Page, title: str, lines: Sequence[LineWork]) -> None:
    if not lines:
        return
    page.heading(f"Device time by {title}", "a step; and the host time of the line")
    for line in shown(page, lines):
        name = at(line.location, page).removeprefix(" at ") if line.location else line.name
        many = f" ({line.places:,} of them)" if line.places > 1 else ""
        page.labelled(
            f"  {line.share:.1%}",
            f"{time_text(line.device_us)}  {line.kernels:,.4g}x {shortened(name) if line.location is None else name}"
            f"{many}" + (f", host {time_text(line.host_us)}" if line.host_us else ""),
        )


def _write_communication(page: Page, found: Communication) -> None:
    page.heading("Communication", "a step")
    page.labelled(
        "  In all",
        f"{time_text(found.device_us)}: {time_text(found.overlapped_us)} overlapped with other work and"
        f" {time_text(found.exposed_us)} exposed, with nothing else on the device (waiting for other ranks"
        " included)",
    )
    for one in shown(page, found.collectives):
        size = f" of {bytes_text(one.nbytes)} {one.dtype}".rstrip() if one.nbytes else ""
        page.labelled(
            f"  {one.runs:,.3g}x",
            f"{one.kind}{size}{_group_text(one)}: {time_text(one.device_us)},"
            f" {time_text(one.exposed_us)} of it exposed",
        )


def _group_text(one: CollectiveCost) -> str:
    if not (one.group or one.ranks):
        return ""
    if not one.ranks:
        return f", group {one.group}"
    known = ", ".join(map(str, one.ranks))
    ranks = known if len(one.ranks) <= _RANKS_IN_FULL else f"{one.ranks[0]} to {one.ranks[-1]}"
    return f", group {one.group} ({count_text(len(one.ranks), 'rank')}: {ranks})"


def _write_memory(page: Page, memory: MemoryUse) -> None:
    page.heading("Memory of the device", "as torch's allocator says")
    allocated, reserved = memory.peak_allocated_bytes, memory.peak_reserved_bytes
    if allocated is not None and reserved is not None:
        page.labelled(
            "  Peak", f"{bytes_text(allocated)} allocated, {bytes_text(reserved)} reserved"
        )
    page.labelled(
        "  Allocations",
        f"{memory.allocations:,.4g} a step, {bytes_text(round(memory.allocated_bytes))} in all;"
        f" {memory.allocations_in_gaps:,.3g} of them while the device idles",
    )
    if memory.growth_bytes is not None and memory.reserved_growth_bytes is not None:
        page.labelled(
            "  Growth",
            f"{more_bytes_text(round(memory.growth_bytes))} allocated and"
            f" {more_bytes_text(round(memory.reserved_growth_bytes))} reserved from step to step",
            style="yellow" if memory.growth_bytes > 0 else "",
        )


def write_graphs(page: Page, graphs: GraphUse | None) -> None:
    """What steps do with graphs; that they make them anew is said at the top of the page."""
    if graphs is None:
        return
    page.heading("CUDA graphs in the trace", "a step")
    page.labelled(
        "  Launches", f"{graphs.launches:,.3g}, which start {graphs.kernels:,.4g} device events"
    )
    if graphs.captures or graphs.instantiations:
        page.labelled(
            "  Made in steps",
            f"{graphs.captures:,.3g} {'capture' if graphs.captures == 1 else 'captures'} and"
            f" {graphs.instantiations:,.3g} {'instantiation' if graphs.instantiations == 1 else 'instantiations'}"
            f" ({time_text(graphs.instantiation_us)}){at(graphs.location, page)}",
            style="yellow",
        )
    for replay in shown(page, graphs.replays):
        number = f"graph {replay.graph_id}" if replay.graph_id else "a graph"
        maker = f" of {replay.maker}" if replay.maker else ""
        kernels = ", ".join(kernel_text(name) for name in replay.longest_kernels[:2])
        page.labelled(
            f"  {replay.launches:,.3g}x",
            f"{number}{maker}{at(replay.location, page)}: {replay.kernels:,.4g} device events,"
            f" {time_text(replay.device_us)}, host {time_text(replay.launch_us)} a launch"
            + (f"; mostly {kernels}" if kernels else "; none of its kernels is in the trace"),
        )
