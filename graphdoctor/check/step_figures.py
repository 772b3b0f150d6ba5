"""A report -> the figures of its step's structure: waits, launches, graphs, and their share."""

from __future__ import annotations

from graphdoctor.rules import ALL_RULES
from graphdoctor.values.check import Figures
from graphdoctor.values.report import CaptureOutcome, Region, Report

SYNC_RULES = frozenset(rule.id for rule in ALL_RULES if rule.makes_host_wait)
_DIGITS = 4


def figures_of(report: Report) -> Figures:
    """Whole numbers and one rounded share, equal for equal steps."""
    kept = captured_regions(report)
    is_whole = _is_whole(report)
    return Figures(
        syncs=sum(finding.count for finding in report.findings if finding.rule in SYNC_RULES),
        launches=report.estimate.launches if report.estimate is not None else 0,
        graphs=1 if is_whole else len(kept),
        coverage=1.0 if is_whole else round(_coverage(report, kept), _DIGITS),
    )


def captured_regions(report: Report) -> list[Region]:
    """The regions that are worth a graph of their own and whose replay was verified."""
    good = {outcome.region for outcome in report.captures if _is_verified(outcome)}
    return [region for region in report.regions if region.worthwhile and region.name in good]


def _coverage(report: Report, kept: list[Region]) -> float:
    """The share of one step's launches in captured regions: of the iteration that has least."""
    shares = [_share(report, kept, iteration) for iteration in range(report.iterations)]
    return min(shares, default=0.0)


def _share(report: Report, kept: list[Region], iteration: int) -> float:
    """Of launches where they are known, else of operators."""
    inside = [region for region in kept if iteration in region.iterations]
    if report.estimate is not None and report.estimate.launches:
        share = sum(region.launches for region in inside) / report.estimate.launches
    else:
        share = sum(region.operators for region in inside) / max(1, report.operators)
    return min(1.0, share)


def _is_whole(report: Report) -> bool:
    return any(outcome.is_whole_step and _is_verified(outcome) for outcome in report.captures)


def _is_verified(outcome: CaptureOutcome) -> bool:
    return outcome.status == "captured" and outcome.is_verified
