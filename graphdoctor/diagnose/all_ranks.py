"""The reports of all ranks of one step -> one report: what they agree on, and what only some of them say."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from graphdoctor.values.figures import count_text
from graphdoctor.values.report import Finding, RankOutcome, Report, Verdict

_WORST_FIRST: tuple[Verdict, ...] = ("unsafe", "partly-safe", "unknown", "safe")


def merged(reports: Sequence[Report]) -> Report:
    """By rank, from 0. The verdict is the worst of any rank, since all of them replay or none does."""
    worst = min(reports, key=lambda report: _WORST_FIRST.index(report.verdict))
    rank, verdicts = reports.index(worst), {report.verdict for report in reports}
    agree = f"On all {len(reports)} ranks: "
    reason = (agree if len(verdicts) == 1 else f"On rank {rank}: ") + worst.reason
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
