"""What a trace's time was spent on -> tables of its page: waits, the device's work, operators, lines, launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import more_bytes_text, time_text
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import Location
from graphdoctor.values.trace import HostCost, Queue, TraceReport
from graphdoctor.values.trace_work import DeviceWork

_Row = TypeVar("_Row")
_ROWS = 6
_LONGEST_NAME = 60
_SPARKS = " .:-=+*#%@"


def write_costs(page: Page, report: TraceReport) -> None:
    """All tables that have rows."""
    _write_syncs(page, report)
    _write_work(page, report.work)
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


def _write_work(page: Page, work: DeviceWork) -> None:
    """The device's own time, from families down to lines; communication and copies."""
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
                          f" {short_name(_bare(kernel.name))}{operator}")  # fmt: skip
    for title, lines in (("the launching function", work.lines), ("module", work.modules)):
        if lines:
            page.heading(f"Device time by {title}", "a step")
        for line in shown(page, lines):
            name = at(line.location, page).removeprefix(" at ") if line.location else line.name
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
        for copy in shown(page, work.copies):
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


def at(location: Location | None, page: Page) -> str:
    if location is None:
        return ""
    return f" at {place_text(location, page.look.base)} ({location.function})"


def short_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def shown(page: Page, rows: Sequence[_Row]) -> Sequence[_Row]:
    return rows if page.look.show_all else rows[:_ROWS]
