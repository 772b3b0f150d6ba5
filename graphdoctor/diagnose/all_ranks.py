"""Joins the reports of all ranks of one step: what they agree on, and what only some of them say."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.program import ProgramReport, ProgramStep
from graphdoctor.values.report import RankOutcome, Report, Verdict

_WORST_FIRST: tuple[Verdict, ...] = ("unsafe", "partly-safe", "unknown", "safe")


def merged(reports: Sequence[Report]) -> Report:
    """By rank, from 0. The verdict is the worst of any rank, since all of them replay or none does.

    Of ranks that are as bad, the reason is that of the one with the most findings.
    """
    worst = min(reports, key=lambda one: (_WORST_FIRST.index(one.verdict), -len(one.findings)))
    rank = reports.index(worst)
    is_same = len({(one.verdict, len(one.findings)) for one in reports}) == 1
    reason = (f"On all {len(reports)} ranks: " if is_same else f"On rank {rank}: ") + worst.reason
    outcomes = (RankOutcome(n, one.verdict, one.reason) for n, one in enumerate(reports))
    return replace(
        worst,
        reason=reason,
        findings=_findings(reports),
        limits=tuple(
            dict.fromkeys((*_differences(reports), *(x for r in reports for x in r.limits)))
        ),
        ranks=tuple(outcomes),
    )


def merged_programs(programs: Sequence[ProgramReport]) -> ProgramReport:
    """By rank, from 0: rank 0's steps, each with what all ranks say of it.

    A step that some rank did not diagnose has no report, and a reason that says which.
    """
    by_name = [{step.name: step for step in one.steps} for one in programs]
    steps = tuple(
        _of_all(step, [each.get(step.name) for each in by_name]) for step in programs[0].steps
    )
    codes = [one.exit_code for one in programs]
    notes = dict.fromkeys(note for one in programs for note in one.notes)
    failed = next((rank for rank, code in enumerate(codes) if code), None)
    if failed is not None and not codes[0]:
        notes[f"Rank {failed} ended with exit code {codes[failed]}."] = None
    return replace(programs[0], steps=steps, notes=tuple(notes), exit_code=max(codes, key=abs))


def _of_all(step: ProgramStep, of_each: Sequence[ProgramStep | None]) -> ProgramStep:
    reports = [one.report for one in of_each if one is not None and one.report is not None]
    if len(reports) == len(of_each):
        return replace(step, report=merged(reports))
    lacking = next(n for n, one in enumerate(of_each) if one is None or one.report is None)
    other = of_each[lacking]
    why = other.reason if other is not None and other.reason else "it was not seen there"
    is_reached = other is not None and other.is_reached
    reason = f"Not diagnosed on rank {lacking}: {why}"
    return replace(step, report=None, reason=reason, is_reached=is_reached)


def _findings(reports: Sequence[Report]) -> tuple[Finding, ...]:
    """Each place once; one that not every rank found says on which ranks it is."""
    by_place: dict[object, dict[int, Finding]] = {}
    for rank, report in enumerate(reports):
        for found in report.findings:
            by_place.setdefault((found.rule, found.location), {})[rank] = found
    return tuple(_said_of(found, len(reports)) for found in by_place.values())


def _said_of(found: dict[int, Finding], count: int) -> Finding:
    first = next(iter(found.values()))
    if len(found) == count:
        return first
    ranks = f"{'rank' if len(found) == 1 else 'ranks'} {', '.join(map(str, found))}"
    return replace(first, message=f"On {ranks} only: {first.message}")


def _differences(reports: Sequence[Report]) -> tuple[str, ...]:
    """Ranks that run other operators may wait for each other for ever, on other data."""
    counts = {rank: report.operators for rank, report in enumerate(reports)}
    if len(set(counts.values())) == 1:
        return ()
    said = ", ".join(f"{count_text(n, 'operator')} on rank {rank}" for rank, n in counts.items())
    return (f"The ranks run different steps: {said}.",)
