"""The page of two compared traces: a sentence, then what became faster and slower."""

from __future__ import annotations

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.reporters.trace_page import kernel_text
from graphdoctor.values.compared_traces import ChangeWhat, TraceChange, TraceComparison
from graphdoctor.values.figures import time_text
from graphdoctor.values.locations import path_text
from graphdoctor.values.trace import TraceReport

_ROWS = 8
_LEAST_US = 0.05
_LONGEST_NAME = (
    140  # of two kernels that differ, the arguments of the template are often what differs
)
_TITLES: dict[ChangeWhat, str] = {
    "kernel": "Device time by kernel",
    "idle": "Idle time by what the host did",
    "operator": "Host time by operator",
    "function": "Host time by the user's functions",
}


def render(report: TraceComparison, look: Look) -> str:
    """The page of a comparison."""
    page = Page(look)
    page.line(("BEFORE AND AFTER", "bold"))
    page.paragraph(report.sentence, style="bold")
    for label, one in (("  Before", report.before), ("  After", report.after)):
        page.labelled(label, f"{path_text(one.file, look.base)}: {one.verdict}, {_shares(one)}")
    if report.terms:
        _write_terms(page, report)
    for what, title in _TITLES.items():
        changes = [change for change in report.changes if change.what == what]
        if changes:
            profiled = "" if what == "kernel" else ", as profiled"
            page.heading(title, f"a step, before and after{profiled}")
        for change in changes if look.show_all else changes[:_ROWS]:
            _write_change(page, change)
    for title, names in (("New kernels", report.kernels_new), ("Gone", report.kernels_gone)):
        if names:
            page.heading(title)
        for name in names if look.show_all else names[:_ROWS]:
            page.paragraph(kernel_text(name, _LONGEST_NAME), indent=2)
        if len(names) > _ROWS and not look.show_all:
            page.paragraph(f"and {len(names) - _ROWS:,} more (--all)", indent=2)
    return page.render()


def _write_terms(page: Page, report: TraceComparison) -> None:
    basis = "without the profiler" if report.without_profiler else "as profiled"
    page.heading("A step", f"before and after, {basis}; the terms sum to the step")
    for term in report.terms:
        if max(abs(term.before_us), abs(term.after_us)) < _LEAST_US:
            continue
        _write_term(page, term.name, term.before_us, term.after_us)
    before, after = (
        sum(times)
        for times in zip(*((one.before_us, one.after_us) for one in report.terms), strict=True)
    )
    _write_term(page, "the step", before, after, style="bold")


def _write_term(
    page: Page, name: str, before_us: float, after_us: float, *, style: str = ""
) -> None:
    page.labelled(
        f"  {after_us - before_us:+,.1f} us",
        f"{name}: {before_us:,.1f} us to {after_us:,.1f} us",
        style=style,
    )


def _shares(report: TraceReport) -> str:
    return (
        f"{time_text(report.step_us)} a step, busy"
        f" {report.device_busy_share:.1%}, launch-bound {report.launch_bound_share:.1%}, sync wait"
        f" {report.sync_wait_share:.1%}"
    )


def _write_change(page: Page, change: TraceChange) -> None:
    more = change.after_us - change.before_us
    word = "new" if not change.before_us else "gone" if not change.after_us else ""
    head = f"  {'+' if more > 0 else '-'}{time_text(abs(more))}"
    times = word or f"{time_text(change.before_us)} to {time_text(change.after_us)}"
    name = kernel_text(change.name, _LONGEST_NAME)
    page.labelled(head, f"{name}: {times}", style="yellow" if more > 0 else "green")
