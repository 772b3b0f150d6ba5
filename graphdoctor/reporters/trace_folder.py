"""Explained traces of a folder -> a page: a line for each worker, and what differs between them."""

from __future__ import annotations

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.reporters.trace_page import VERDICT_STYLES
from graphdoctor.values.compared_traces import FolderReport, RankComparison, WorkerDifference
from graphdoctor.values.figures import count_text, time_text
from graphdoctor.values.locations import path_text
from graphdoctor.values.trace import TraceReport


def render(report: FolderReport, look: Look) -> str:
    """The page of a folder: a line for each worker, and what differs between them."""
    page = Page(look)
    page.line((count_text(len(report.workers), "worker"), "bold"),
              (f"  {path_text(report.folder, look.base)}", "dim"))  # fmt: skip
    for worker in report.workers:
        page.blank()
        page.line((worker.verdict.upper().replace("-", " "), VERDICT_STYLES[worker.verdict]),
                  (f"  {worker.worker}, {path_text(worker.file, look.base)}", "dim"))  # fmt: skip
        page.paragraph(worker.reason, indent=2)
        page.labelled("  Step time", time_text(worker.step_us))
        page.labelled("  Shares", _shares_text(worker))
    if report.ranks is not None:
        _write_ranks(page, report.ranks)
    page.heading("Differences", "between the workers")
    for difference in report.differences:
        page.labelled(f"  {_FIGURE_WORDS[difference.figure]}", _difference_text(difference))
    if not report.differences:
        page.paragraph("None worth a word.", indent=2)
    if report.failures:
        page.heading("Not read")
        for failure in report.failures:
            page.paragraph(failure, indent=2, style="yellow")
    return page.render()


def _write_ranks(page: Page, found: RankComparison) -> None:
    """Who is waited for, and how long each rank waits; on one clock."""
    page.heading("Ranks", f"{found.collectives:,} collectives in common; a step")
    if found.problem:
        page.paragraph(found.problem, indent=2, style="yellow")
        return
    page.paragraph(straggler_text(found), indent=2, style="bold yellow" if found.straggler else "")
    most = max(rank.compute_us for rank in found.ranks)
    mean = sum(rank.compute_us for rank in found.ranks) / len(found.ranks)
    for rank in found.ranks:
        page.labelled(
            f"  {rank.worker}",
            f"computes {time_text(rank.compute_us)}, in collectives works {time_text(rank.working_us)} and waits"
            f" {time_text(rank.waiting_us)} for others, is waited for {time_text(rank.caused_us)}; clock"
            f" {rank.clock_offset_us:+,.1f} us",
        )
    for wait in found.waits:
        page.labelled(
            f"  {wait.runs:,.3g}x",
            f"{wait.kind}: works {time_text(wait.working_us)} and waits {time_text(wait.waiting_us)}"
            " for the last rank, in the mean of the ranks",
        )
    page.labelled("  Imbalance", f"{most / (mean or 1):.2f} times the mean on the busiest rank")
    page.labelled("  Skew", f"{time_text(found.skew_us)} from the first to the last to begin")


def straggler_text(found: RankComparison) -> str:
    """Which rank the others wait for, and what it does meanwhile; or that there is none."""
    if not found.straggler:
        return "No rank is waited for much more than the others."
    caused = max(rank.caused_us for rank in found.ranks)
    phase = f"in {found.phase}, " if found.phase else ""
    return (
        f"{found.straggler} comes last, and the others wait {time_text(caused)} for it:"
        f" {phase}{found.reason}."
    )


_FIGURE_WORDS = {
    "step_us": "Step",
    "device_busy_us": "Device busy",
    "kernels": "Kernels",
    "device_busy_share": "Busy",
    "launch_bound_share": "Launch-bound",
    "sync_wait_share": "Sync wait",
    "device_gap_share": "Device gaps",
    "graph_kernel_share": "In graphs",
}


def _difference_text(found: WorkerDifference) -> str:
    def text(value: float) -> str:
        if found.figure.endswith("_share"):
            return f"{value:.1%}"
        return time_text(value) if found.figure.endswith("_us") else f"{value:,.0f}"

    return f"{text(found.low)} on {found.low_worker}, {text(found.high)} on {found.high_worker}"


def _shares_text(report: TraceReport) -> str:
    return (
        f"busy {report.device_busy_share:.1%}, launch-bound {report.launch_bound_share:.1%},"
        f" sync wait {report.sync_wait_share:.1%}, device gaps {report.device_gap_share:.1%},"
        f" unattributed {report.unattributed_share:.1%}"
    )
