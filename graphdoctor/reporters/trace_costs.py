"""What a trace's time was spent on -> tables of its page: waits, the device's work, operators, lines, launches."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.reporters.page import Page
from graphdoctor.reporters.trace_rows import at, shown
from graphdoctor.reporters.trace_work_tables import write_work
from graphdoctor.values.figures import time_text
from graphdoctor.values.locations import place_text
from graphdoctor.values.trace import HostCost, Queue, TraceReport

_SPARKS = " .:-=+*#%@"


def write_costs(page: Page, report: TraceReport) -> None:
    """All tables that have rows."""
    _write_syncs(page, report)
    write_work(page, report.work)
    _write_host(page, "Host time by operator", report.operators)
    _write_host(page, "Host time by the user's functions", report.lines)
    _write_launches(page, report)


def _write_syncs(page: Page, report: TraceReport) -> None:
    if not report.syncs:
        return
    page.heading("Where the host waits", "a step")
    for sync in shown(page, report.syncs):
        operator = f" in {sync.operator}" if sync.operator else ""
        page.labelled(
            f"  {sync.count:,.3g}x",
            f"{sync.call}{operator}{at(sync.location, page)}: host {time_text(sync.host_wait_us)},"
            f" device idle meanwhile {time_text(sync.device_idle_us)}",
        )


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
