"""An explained trace -> a page for people: the verdict first, then its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import (
    count_text,
    more_bytes_text,
    ratio_range,
    share_range,
    time_range,
    time_text,
)
from graphdoctor.values.locations import path_text, place_text
from graphdoctor.values.report import Location
from graphdoctor.values.trace import (
    WORK_WORDS,
    GraphUse,
    HostCost,
    Queue,
    TracePrediction,
    TraceReport,
    TraceVerdict,
)

_Row = TypeVar("_Row")
_ROWS = 6
_CAUSES = 10
_LONGEST_NAME = 60
_WORTH_A_ROW = 0.005
_SPARKS = " .:-=+*#%@"
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
    _write_time(page, report)
    _write_causes(page, report)
    if report.prediction is not None:
        _write_prediction(page, report.prediction)
    elif report.no_prediction:
        page.heading("One step with graphs", "not predicted")
        page.paragraph(report.no_prediction, indent=2)
    _write_graphs(page, report.graphs)
    _write_syncs(page, report)
    _write_work(page, report)
    _write_costs(page, "Host time by operator", report.operators)
    _write_costs(page, "Host time by the user's functions", report.lines)
    _write_launches(page, report)
    _write_gaps(page, report)
    _write_doubts(page, report)
    return page.render()


def _write_time(page: Page, report: TraceReport) -> None:
    """Where every nanosecond of the device went."""
    gpu = f"{report.gpu}, " if report.gpu else ""
    page.heading("Time of the device, as profiled", f"{gpu}device {report.device}")
    page.labelled("  Steps", _steps_text(report))
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
    rows = (
        ("Busy", report.device_busy_ns, "a kernel, copy or fill ran"),
        ("Host", report.host_ns, "idle: the host had not reached the launch"),
        ("Launch path", report.launch_path_ns, "idle: in the launch and on its way"),
        ("Sync wait", report.sync_wait_ns, "idle: the host waited for the device"),
        ("Device gap", report.device_gap_ns, "idle: the work was queued already"),
        ("Unattributed", report.unattributed_ns, "idle: no launch in the trace"),
    )
    for name, value_ns, what in rows:
        page.labelled(
            f"  {name}", _amount(value_ns, report, what), style="bold" if name == "Busy" else ""
        )
    page.labelled("  Sum", _amount(report.span_ns, report, "from the first start to the last end"))
    graphs = f"; {report.graph_kernel_share:.0%} of the kernels run inside graphs already"
    page.labelled(
        "  Kernels", f"{report.kernels:,} of {report.device_events:,} device events{graphs}"
    )
    for other in report.devices[1:]:
        page.labelled(f"  Device {other.device}", f"busy {other.device_busy_share:.1%},"
                      f" launch-bound {other.launch_bound_share:.1%}")  # fmt: skip


def _amount(value_ns: int, report: TraceReport, what: str) -> str:
    share = value_ns / (report.span_ns or 1)
    return f"{share:>6.1%}  {value_ns / 1e3 / report.steps_counted:>12,.1f} us  {what}"


def _steps_text(report: TraceReport) -> str:
    basis = {
        "annotations": "by their annotations",
        "repeating launches": "found by what repeats in the launches",
        "whole span": "no steps were found: the whole span counts as one",
    }[report.step_basis]
    left_out = len(report.steps) - report.steps_counted
    more = f", {left_out} left out" if left_out else ""
    return f"{count_text(report.steps_counted, 'step')} {basis}{more}; times are of one step"


def _write_causes(page: Page, report: TraceReport) -> None:
    """What the host did while the device had nothing to do."""
    if not report.gap_causes:
        return
    page.heading("What the host did meanwhile", "share of the idle time; a step")
    for kind in report.idle_kinds:
        if page.look.show_all or kind.share >= _WORTH_A_ROW:
            text = f"{time_text(kind.idle_us)}  {WORK_WORDS[kind.kind]}"
            page.labelled(f"  {kind.share:.1%}", text, style="bold")
    page.blank()
    for cause in report.gap_causes if page.look.show_all else report.gap_causes[:_CAUSES]:
        if not page.look.show_all and cause.share < _WORTH_A_ROW:
            continue
        word = "" if cause.kind == "ordinary" else WORK_WORDS[cause.kind]
        what = ": ".join(part for part in (word, _short_name(cause.name)) if part)
        page.labelled(
            f"  {cause.share:.1%}",
            f"{time_text(cause.idle_us)}  {what}{_at(cause.location, page)}",
        )


def _short_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _write_prediction(page: Page, found: TracePrediction) -> None:
    anchored = (
        "without the profiler" if found.wall_us is None else "anchored at the wall time given"
    )
    page.heading("One step with graphs", f"predicted, {anchored}")
    page.labelled("  As it is", time_range(found.eager_us))
    page.labelled("  Launch-bound", share_range(found.launch_bound_share))
    page.labelled("  With graphs", time_range(found.graph_us))
    page.labelled("  Speed-up", ratio_range(found.speedup), style="bold")
    page.labelled("  Without syncs", f"{time_range(found.without_syncs_us)}, and no graphs")
    page.labelled(
        "  Graphs",
        f"{found.regions:.3g} a step, in place of {found.launches_captured:,.0f} launches",
    )
    for term in found.terms:
        source = f"  ({term.source})" if page.look.show_all else ""
        page.labelled("  Term", f"{term.name}: {term.value}{source}")
    page.labelled(
        "  Simulation", f"{found.simulation_error:+.1%} off the trace when replayed as profiled"
    )


def _write_graphs(page: Page, graphs: GraphUse | None) -> None:
    if graphs is None:
        return
    page.heading("CUDA graphs in the trace", "a step")
    page.labelled(
        "  Launches", f"{graphs.launches:,.3g}, which start {graphs.kernels:,.4g} kernels"
    )
    if graphs.captures or graphs.instantiations:
        page.labelled(
            "  Made in steps",
            f"{graphs.captures:,.3g} captures and {graphs.instantiations:,.3g} instantiations"
            f" ({time_text(graphs.instantiation_us)}){_at(graphs.location, page)}: capture once, before the"
            " steps, and launch the graph in them.",
            style="yellow",
        )


def _write_work(page: Page, report: TraceReport) -> None:
    """The device's own time, from families down to lines; communication and copies."""
    work = report.work
    if work.families:
        page.heading("Device time by family of kernels", "a step")
        for family in _shown(page, work.families):
            what = f"{time_text(family.device_us)}  {family.runs:,.4g}x {family.family}"
            page.labelled(f"  {family.share:.1%}", what)
    if work.kernels:
        page.heading("Device time by kernel", "a step")
        for kernel in _shown(page, work.kernels):
            operator = f" from {kernel.operator}" if kernel.operator else ""
            page.labelled(f"  {kernel.share:.1%}", f"{time_text(kernel.device_us)}  {kernel.runs:,.4g}x"
                          f" {_short_name(_bare(kernel.name))}{operator}")  # fmt: skip
    for title, lines in (("the launching function", work.lines), ("module", work.modules)):
        if lines:
            page.heading(f"Device time by {title}", "a step")
        for line in _shown(page, lines):
            name = _at(line.location, page).removeprefix(" at ") if line.location else line.name
            what = f"{time_text(line.device_us)}  {line.kernels:,.4g}x {name}"
            page.labelled(f"  {line.share:.1%}", what)
    if work.collectives:
        page.heading("Communication", "a step")
        for one in work.collectives:
            size = f", {_bytes(one.nbytes)}" if one.nbytes else ""
            page.labelled(
                f"  {one.runs:,.3g}x",
                f"{one.kind}{size}: {time_text(one.device_us)}, of which {time_text(one.exposed_us)} with nothing"
                " else on the device (waiting for other ranks included)",
            )
    if work.copies:
        page.heading("Copies", "a step")
        for copy in _shown(page, work.copies):
            memory = f" ({copy.host_memory})" if copy.host_memory else ""
            page.labelled(
                f"  {copy.copies:,.3g}x",
                f"{copy.direction}{memory}: {_bytes(copy.nbytes)}, {time_text(copy.device_us)}",
            )


def _bare(kernel: str) -> str:
    """A kernel's name without what every name of torch's kernels begins with."""
    for part in ("void ", "at::native::", "(anonymous namespace)::"):
        kernel = kernel.replace(part, "")
    return kernel


def _bytes(count: float) -> str:
    return more_bytes_text(round(count)).removeprefix("+")


def _write_syncs(page: Page, report: TraceReport) -> None:
    if not report.syncs:
        return
    page.heading("Where the host waits", "a step")
    for sync in _shown(page, report.syncs):
        operator = f" in {sync.operator}" if sync.operator else ""
        page.labelled(
            f"  {sync.count:,.3g}x",
            f"{sync.call}{operator}{_at(sync.location, page)}: host {time_text(sync.host_wait_us)},"
            f" device idle meanwhile {time_text(sync.device_idle_us)}",
        )


def _at(location: Location | None, page: Page) -> str:
    if location is None:
        return ""
    return f" at {place_text(location, page.look.base)} ({location.function})"


def _write_costs(page: Page, title: str, costs: Sequence[HostCost]) -> None:
    if not costs:
        return
    page.heading(title, "a step, waits left out, as profiled")
    for cost in _shown(page, costs):
        name = cost.name if cost.location is None else place_text(cost.location, page.look.base)
        function = f" {cost.location.function}" if cost.location is not None else ""
        page.labelled(
            f"  {cost.share:.0%}", f"{time_text(cost.host_us)}  {cost.calls:,.3g}x {name}{function}"
        )


def _write_launches(page: Page, report: TraceReport) -> None:
    page.heading("Launches", "a step")
    for launch in report.launches:
        page.labelled(f"  {launch.launches:,.4g}x", f"{launch.call}: {launch.events:,.4g} device events,"
                      f" host {time_text(launch.host_us)}, device {time_text(launch.device_us)}")  # fmt: skip
    page.labelled("  Queue", _queue_text(report.queue))


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


def _write_gaps(page: Page, report: TraceReport) -> None:
    if not report.longest_gaps:
        return
    page.heading("Longest gaps", "what the host was in, and what ended them")
    for gap in _shown(page, report.longest_gaps):
        causes = {
            "host": gap.host_ns,
            "launch path": gap.launch_path_ns,
            f"sync {gap.sync}": gap.sync_wait_ns,
            "device": gap.device_gap_ns,
            "unattributed": gap.unattributed_ns,
        }
        parts = ", ".join(
            f"{name} {time_text(value / 1e3)}" for name, value in causes.items() if value
        )
        what = gap.operator or gap.kernel[:40]
        did = f"; in {_short_name(gap.doing)}{_at(gap.doing_at, page)}" if gap.doing else ""
        page.labelled(
            f"  {time_text(gap.length_ns / 1e3)}",
            f"{parts}{did}; before {what}" + ("" if did else _at(gap.location, page)),
        )


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


def _shown(page: Page, rows: Sequence[_Row]) -> Sequence[_Row]:
    return rows if page.look.show_all else rows[:_ROWS]
