"""A folder of ranks is one job: the slowest rank and why, groups that behave alike, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.reporters import trace_html, traces_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed, written
from graphdoctor.trace.explain.folder import in_full, shortened, summarize
from graphdoctor.trace.explain.trace_report import explain_trace
from graphdoctor.trace.read.file import read_trace
from graphdoctor.values.trace import (
    TRACE_SCHEMA_VERSION,
    FolderReport,
    Job,
    RankComparison,
    RankTime,
    TraceReport,
    TraceVerdict,
)
from tests.support.trace_stories import REAL
from tests.support.traces import TraceBuilder, launch_bound


@pytest.fixture(scope="module")
def one() -> TraceReport:
    """Five steps of 20 kernels, 200 us each."""
    return explain_trace(launch_bound(20, steps=5).trace(), Path("r.json"))


def rank(
    one: TraceReport, number: int, verdict: TraceVerdict = "launch-bound", **ns: int
) -> TraceReport:
    """The report with other times of all five steps, its shares with them."""
    changed = replace(one, worker=f"rank {number}", verdict=verdict, reason=f"{verdict}.", **ns)
    span = changed.span_ns
    return replace(
        changed,
        device_busy_share=changed.device_busy_ns / span,
        launch_bound_share=changed.launch_bound_ns / span,
        sync_wait_share=changed.sync_wait_ns / span,
    )


def job_of(*ranks: TraceReport, found: RankComparison | None = None) -> Job:
    made = summarize(ranks, found)
    assert made is not None
    return made


def test_one_trace_is_no_job(one: TraceReport) -> None:
    assert summarize([one], None) is None


def test_ranks_that_take_as_long_have_no_slowest(one: TraceReport) -> None:
    found = job_of(rank(one, 0), rank(one, 1))
    assert (found.slowest, len(found.groups)) == ("", 1)
    assert found.reason.startswith("All 2 ranks take ")
    assert found.groups[0].workers == ("rank 0", "rank 1")
    assert found.advice == one.advice


def test_the_slowest_rank_is_named_with_the_part_in_which_it_loses_most(one: TraceReport) -> None:
    more = 500_000  # of five steps
    slow = rank(one, 2, span_ns=one.span_ns + more, device_busy_ns=one.device_busy_ns + more)
    found = job_of(rank(one, 0), rank(one, 1), slow)
    assert found.slowest == "rank 2"
    busy_us = one.device_busy_ns / 5e3
    assert (
        f"It spends {busy_us + 100:.0f} µs computing, {busy_us:.0f} µs in the median."
        in found.reason
    )
    assert found.step_us.high == pytest.approx(found.step_us.mid + 100)


def test_ranks_are_grouped_by_their_shares_and_judged_by_most_of_the_group(
    one: TraceReport,
) -> None:
    waiting = {
        "sync_wait_ns": one.span_ns // 2,
        "launch_bound_ns": one.launch_bound_ns - one.span_ns // 2,
    }
    ranks = [
        rank(one, 0, "mixed"),
        rank(one, 1),
        rank(one, 2, "sync-bound", **waiting),
        rank(one, 3),
    ]
    first, second = job_of(*ranks).groups
    assert (first.workers, first.verdict) == (("rank 0", "rank 1", "rank 3"), "launch-bound")
    assert (second.workers, second.verdict) == (("rank 2",), "sync-bound")
    assert second.sync_wait_share.mid == pytest.approx(0.5, abs=0.001)


def test_a_sync_bound_group_shows_what_goes_without_its_syncs_and_no_wait_of_zero() -> None:
    """The waits are short, but the host never gets ahead: launches after them are what the GPU waits for."""
    builder = TraceBuilder()
    for place in range(40):
        at = 1000.0 + 100 * place
        builder.launch((at, 5), (at + 7, 60))
        builder.call("cudaStreamSynchronize", at + 10, 58)
    waiting = explain_trace(builder.trace(), Path("r.json"))
    assert waiting.verdict == "sync-bound"
    assert waiting.sync_wait_share < 0.05
    job = job_of(replace(waiting, worker="rank 0"), replace(waiting, worker="rank 1"))
    (group,) = job.groups
    assert group.idle_through_syncs is not None
    share = f"{group.idle_through_syncs.mid:.0%} of the idle time goes"
    assert share in waiting.reason
    report = folder([replace(waiting, worker=f"rank {number}") for number in range(2)])
    for page in (
        traces_page.folder_page(report, Look(width=200)),
        trace_html.render(report, Look()),
    ):
        assert f"{share} without host syncs" in page
    assert "sync wait" not in traces_page.folder_page(report, Look(width=200))


def straggling(workers: Sequence[TraceReport]) -> RankComparison:
    times = tuple(
        RankTime(worker.worker, 0.0, 900.0, 1310.0 * (place == 1), 10.0, 5.0)
        for place, worker in enumerate(workers)
    )
    reason = "before all_to_all its device idles for 5,838 us a step, the others for 4,435 us"
    return RankComparison(
        ranks=times, collectives=8, straggler="rank 1", phase="forward", reason=reason
    )


def folder(workers: Sequence[TraceReport], ranks: RankComparison | None = None) -> FolderReport:
    job = summarize(workers, ranks)
    full = in_full(workers, job)
    workers = [one if place in full else shortened(one) for place, one in enumerate(workers)]
    return FolderReport(
        schema_version=TRACE_SCHEMA_VERSION,
        tool_version="0.1.0",
        folder="/runs",
        workers=tuple(workers),
        differences=(),
        ranks=ranks,
        job=job,
    )


def test_where_the_others_wait_for_a_rank_no_group_is_told_to_fix_its_waits_first(
    one: TraceReport,
) -> None:
    """As for the eight ranks of a DLRM: their waits for results end when rank 7 comes."""
    told = "Fix them first: the waits."
    workers = [
        replace(rank(one, number, "sync-bound"), reason=told, advice=told) for number in range(3)
    ]
    report = folder(workers, straggling(workers))
    assert report.job is not None
    assert report.job.slowest == "rank 1"
    page = " ".join(traces_page.folder_page(report, Look(width=200)).split())
    assert (
        "rank 1 comes last, and the others wait 1.31 ms for it: in forward, before all_to_all"
        in page
    )
    assert "Start with rank 1" in page
    assert told not in page
    assert "SYNC BOUND 3 ranks: 0 to 2" in page
    assert told in " ".join(traces_page.folder_page(report, Look(width=200, show_all=True)).split())


def test_ranks_stand_behind_all(one: TraceReport) -> None:
    report = folder([rank(one, number) for number in range(40)])
    page = traces_page.folder_page(report, Look())
    assert len(page.splitlines()) <= 24
    assert "40 ranks: 0 to 39" in page
    assert "Use --all for each rank." in page
    everything = traces_page.folder_page(report, Look(show_all=True))
    assert all(f"  rank {number}," in everything for number in range(40))


def test_a_thousand_ranks_are_a_report_that_can_be_sent() -> None:
    """Each rank is a real trace with lanes, gaps and lists; the slowest, the fastest and each group keep theirs."""
    real = explain_trace(read_trace(REAL), REAL)
    workers = [rank(real, number, span_ns=real.span_ns + 10 * number) for number in range(1024)]
    report = folder(workers, None)
    kept = [worker.worker for worker in report.workers if worker.drawn is not None]
    assert kept == ["rank 0", "rank 1023"]
    saved = written(report)
    assert len(saved) < 50 << 20
    assert len(trace_html.render(report, Look())) < 10 << 20
    again = parsed(saved, FolderReport, name="saved")
    assert len(again.workers) == 1024
    assert again.workers[500].device_busy_ns == real.device_busy_ns


def test_a_small_job_keeps_all_of_every_rank(one: TraceReport) -> None:
    workers = [rank(one, number) for number in range(16)]
    assert folder(workers).workers == tuple(workers)
