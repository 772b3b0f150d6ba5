"""Shows several explained traces: a folder of ranks, or before and after a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.reporters.trace_page import VERDICT_STYLES, kernel_text
from graphdoctor.values.figures import Range, count_text, first_of, time_text
from graphdoctor.values.locations import path_text
from graphdoctor.values.trace import (
    ChangeTerm,
    ChangeWhat,
    FolderReport,
    Job,
    RankComparison,
    RankGroup,
    TraceComparison,
)

_GROUPS, _FAILURES, _NAMES = 6, 5, 12  # that are shown without --all
_NUMBERED = re.compile(r"rank \d+$")


def folder_page(report: FolderReport, look: Look) -> str:
    """The page of a folder: the job on one screen; with `show_all` every rank behind it."""
    page = Page(look)
    job = report.job
    page.line((count_text(len(report.workers), "rank" if job else "worker"), "bold"),
              (f"  {path_text(report.folder, look.base)}", "dim"))  # fmt: skip
    if report.left_out:
        page.paragraph(report.left_out)
    if job is not None:
        _write_job(page, job)
    if report.ranks is not None:
        _write_ranks(page, report.ranks)
    page.heading("Differences", "between the ranks")
    for difference in report.differences:
        word, text = _FIGURES[difference.figure]
        page.labelled(
            f"  {word}",
            f"{text(difference.low)} on {difference.low_worker}, {text(difference.high)} on"
            f" {difference.high_worker}",
        )
    if not report.differences:
        page.paragraph("No figure differs by more than 2%.", indent=2)
    if job is None or look.show_all:
        for worker in report.workers:
            page.blank()
            page.line((worker.verdict.upper().replace("-", " "), VERDICT_STYLES[worker.verdict]),
                      (f"  {worker.worker}, {path_text(worker.file, page.look.base)}", "dim"))  # fmt: skip
            page.paragraph(worker.reason, indent=2)
            page.labelled("  Step time", time_text(worker.step_us))
            page.labelled(
                "  Shares",
                f"busy {worker.device_busy_share:.1%}, launch-bound {worker.launch_bound_share:.1%},"
                f" sync wait {worker.sync_wait_share:.1%}, device gaps {worker.device_gap_share:.1%},"
                f" unattributed {worker.unattributed_share:.1%}",
            )
    if report.failures:
        page.heading("Not read", count_text(len(report.failures), "file"))
        failures = report.failures if look.show_all else report.failures[:_FAILURES]
        for failure in failures:
            page.paragraph(failure, indent=2, style="yellow")
        if len(failures) < len(report.failures):
            page.paragraph(f"and {len(report.failures) - len(failures):,} more (--all)", indent=2)
    if job is not None and not look.show_all:
        page.blank()
        page.paragraph("Use --all for each rank. `graphdoctor trace FILE` explains one in full.")
    return page.render()


def _write_job(page: Page, job: Job) -> None:
    page.paragraph(job.reason, style="bold yellow" if job.slowest else "bold")
    page.paragraph(job.advice)
    page.heading("Job", "least, median and most of the ranks")
    page.labelled("  Step", _times_text(job.step_us))
    page.labelled(
        "  Communication",
        f"{_shares_of(job.communication_share)} of a step, with no other work on the GPU",
    )
    page.heading("Ranks that behave alike")
    for group in job.groups if page.look.show_all else job.groups[:_GROUPS]:
        page.line(
            (f"  {group.verdict.upper().replace('-', ' ')}", VERDICT_STYLES[group.verdict]),
            (f"  {ranks_text(group.workers)}", ""),
        )
        page.paragraph(
            f"step {_times_text(group.step_us)}, busy {_shares_of(group.device_busy_share)}, launch-bound"
            f" {_shares_of(group.launch_bound_share)}, exposed communication {_shares_of(group.communication_share)},"
            f" {syncs_text(group)}",
            indent=4,
        )
        if not job.slowest or page.look.show_all:
            page.paragraph(group.reason, indent=4)
    if len(job.groups) > _GROUPS and not page.look.show_all:
        page.paragraph(
            f"and {count_text(len(job.groups) - _GROUPS, 'group')} more (--all)", indent=2
        )


def syncs_text(group: RankGroup) -> str:
    """What host syncs cost: of a sync-bound group what goes with them, which is more than the waits themselves."""
    through = group.idle_through_syncs
    if group.verdict == "sync-bound" and through is not None:
        return f"{_shares_of(through)} of the idle time goes without host syncs"
    return f"sync wait {_shares_of(group.sync_wait_share)}"


def ranks_text(workers: Sequence[str]) -> str:
    """ "5 ranks: 0, 3 to 5, 7"; names that are no numbers as they are."""
    numbers = [int(one.removeprefix("rank ")) for one in workers if _NUMBERED.match(one)]
    if len(numbers) < len(workers):
        return f"{count_text(len(workers), 'rank')}: {first_of(workers, _NAMES)}"
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"{count_text(len(workers), 'rank')}: {first_of(texts, _NAMES)}"


def _times_text(found: Range) -> str:
    low, mid, high = map(time_text, (found.low, found.mid, found.high))
    return mid if low == high else f"{low}, {mid}, {high}"


def _shares_of(found: Range) -> str:
    low, high = f"{found.low:.0%}", f"{found.high:.0%}"
    return low if low == high else f"{low} to {high}"


def _write_ranks(page: Page, found: RankComparison) -> None:
    """Who is waited for, and how long each rank waits; on one clock."""
    page.heading("Collectives", f"{found.collectives:,} in common; a step")
    if found.problem:
        page.paragraph(found.problem, indent=2, style="yellow")
        return
    for rank in found.ranks if page.look.show_all else ():
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
    most = max(rank.compute_us for rank in found.ranks)
    mean = sum(rank.compute_us for rank in found.ranks) / len(found.ranks)
    page.labelled("  Imbalance", f"{most / (mean or 1):.2f} times the mean on the busiest rank")
    page.labelled("  Skew", f"{time_text(found.skew_us)} from the first to the last to begin")
    if not found.straggler:
        page.paragraph("No rank is waited for much more than the others.", indent=2)


# What a figure of ranks is called, and how it is written.
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "step_us": ("Step", time_text),
    "device_busy_us": ("Device busy", time_text),
    "kernels": ("Kernels", "{:,.0f}".format),
    "device_busy_share": ("Busy", "{:.1%}".format),
    "launch_bound_share": ("Launch-bound", "{:.1%}".format),
    "sync_wait_share": ("Sync wait", "{:.1%}".format),
    "device_gap_share": ("Device gaps", "{:.1%}".format),
    "graph_kernel_share": ("In graphs", "{:.1%}".format),
}


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


def comparison_page(report: TraceComparison, look: Look) -> str:
    """The page of a comparison."""
    page = Page(look)
    page.line(("BEFORE AND AFTER", "bold"))
    page.paragraph(report.sentence, style="bold")
    for label, one in (("  Before", report.before), ("  After", report.after)):
        page.labelled(
            label,
            f"{path_text(one.file, look.base)}: {one.verdict}, {time_text(one.step_us)} a step, busy"
            f" {one.device_busy_share:.1%}, launch-bound {one.launch_bound_share:.1%}, sync wait"
            f" {one.sync_wait_share:.1%}",
        )
    if report.terms:
        _write_terms(page, report)
    for what, title in _TITLES.items():
        changes = [change for change in report.changes if change.what == what]
        if changes:
            profiled = "" if what == "kernel" else ", as profiled"
            page.heading(title, f"a step, before and after{profiled}")
        for change in changes if look.show_all else changes[:_ROWS]:
            more = change.after_us - change.before_us
            word = "new" if not change.before_us else "gone" if not change.after_us else ""
            times = word or f"{time_text(change.before_us)} to {time_text(change.after_us)}"
            page.labelled(
                f"  {'+' if more > 0 else '-'}{time_text(abs(more))}",
                f"{kernel_text(change.name, _LONGEST_NAME)}: {times}",
                style="yellow" if more > 0 else "green",
            )
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
    step = ChangeTerm(
        "the step",
        sum(term.before_us for term in report.terms),
        sum(term.after_us for term in report.terms),
    )
    for term in (*report.terms, step):
        if term is step or max(abs(term.before_us), abs(term.after_us)) >= _LEAST_US:
            page.labelled(
                f"  {term.after_us - term.before_us:+,.1f} us",
                f"{term.name}: {term.before_us:,.1f} us to {term.after_us:,.1f} us",
                style="bold" if term is step else "",
            )
