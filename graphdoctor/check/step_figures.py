"""The figures of a step (host syncs, launches, graphs, coverage), and which of them exceed a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from graphdoctor.check.settings.settings import Budgets
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.captures import CaptureOutcome, Region
from graphdoctor.values.check import (
    Breach,
    CheckedFinding,
    FailOn,
    Figures,
    fails,
)
from graphdoctor.values.figures import count_text, share_text
from graphdoctor.values.finding import SEVERITIES
from graphdoctor.values.report import Report

SYNC_RULES = frozenset(rule.id for rule in ALL_RULES if rule.makes_host_wait)
_DIGITS = 4
_MOST: tuple[Literal["syncs", "launches", "graphs"], ...] = ("syncs", "launches", "graphs")
_WORDS = {  # one of it, and what they are counted for
    "syncs": ("wait", "for the device per step"),
    "launches": ("launch", "per step"),
    "graphs": ("graph", "to hold what can be captured"),
}
_EPSILON = 1e-9


def figures_of(report: Report) -> Figures:
    """Whole numbers and one rounded share, equal for equal steps."""
    kept = captured_regions(report)
    # The share of one step's launches in captured regions: of the iteration that has least.
    shares = [_share(report, kept, iteration) for iteration in range(report.iterations)]
    is_whole = any(outcome.is_whole_step and _is_verified(outcome) for outcome in report.captures)
    return Figures(
        syncs=sum(finding.count for finding in report.findings if finding.rule in SYNC_RULES),
        launches=report.estimate.launches if report.estimate is not None else 0,
        graphs=1 if is_whole else len(kept),
        coverage=1.0 if is_whole else round(min(shares, default=0.0), _DIGITS),
    )


def captured_regions(report: Report) -> list[Region]:
    """The regions that are worth a graph of their own and whose replay was verified."""
    good = {outcome.region for outcome in report.captures if _is_verified(outcome)}
    return [region for region in report.regions if region.worthwhile and region.name in good]


def _share(report: Report, kept: list[Region], iteration: int) -> float:
    """Of launches where they are known, else of operators."""
    inside = [region for region in kept if iteration in region.iterations]
    if report.estimate is not None and report.estimate.launches:
        share = sum(region.launches for region in inside) / report.estimate.launches
    else:
        share = sum(region.operators for region in inside) / max(1, report.operators)
    return min(1.0, share)


def _is_verified(outcome: CaptureOutcome) -> bool:
    return outcome.status == "captured" and outcome.is_verified


def beyond_budget(report: Report, figures: Figures, budgets: Budgets) -> Iterator[Breach]:
    """Each figure that exceeds what the settings (or a test's marker) allow."""
    yield from beyond_limits(figures, budgets)
    yield from _too_slow(report, budgets)


def beyond_limits(figures: Figures, budgets: Budgets) -> Iterator[Breach]:
    """The same of the step's structure alone, which a baseline has too."""
    limits = (budgets.max_syncs, budgets.max_launches, budgets.max_graphs)
    for figure, most in zip(_MOST, limits, strict=True):
        value: int = getattr(figures, figure)
        if most is not None and value > most:
            message = f"{_amount(figure, value)}, more than the {most:,} allowed (max_{figure})"
            yield Breach(figure, message, "budget")
    least = budgets.min_coverage
    if least is not None and figures.coverage < least - _EPSILON:
        message = (
            f"{share_text(figures.coverage)} of the launches can be captured, less than the"
            f" {share_text(least)} required (min_coverage)"
        )
        yield Breach("coverage", message, "budget")


def beyond_baseline(now: Figures, before: Figures) -> Iterator[Breach]:
    """Each figure that got worse.

    More graphs are no loss where they hold more of the step, and more launches are none where
    fewer of them are left outside of the graphs.
    """
    outgrown = {
        "syncs": False,
        "launches": _outside(now) < _outside(before),
        "graphs": now.coverage > before.coverage + _EPSILON,
    }
    for figure in _MOST:
        value, accepted = getattr(now, figure), getattr(before, figure)
        if value > accepted and not outgrown[figure]:
            message = f"{_amount(figure, value)}, {value - accepted:,} more than in the baseline"
            yield Breach(figure, message, "baseline")
    if now.coverage < before.coverage - _EPSILON:
        message = (
            f"{share_text(now.coverage)} of the launches can be captured, down from"
            f" {share_text(before.coverage)} in the baseline"
        )
        yield Breach("coverage", message, "baseline")


def improvements(now: Figures, before: Figures) -> Iterator[str]:
    """Each figure that got better, so that the baseline can be made stricter."""
    for figure in ("syncs", "launches"):
        value, accepted = getattr(now, figure), getattr(before, figure)
        if value < accepted:
            yield f"{_amount(figure, value)}, {accepted - value:,} fewer than in the baseline"
    if now.coverage > before.coverage + _EPSILON:
        yield (
            f"{share_text(now.coverage)} of the launches can be captured, up from"
            f" {share_text(before.coverage)} in the baseline"
        )


def _outside(figures: Figures) -> int:
    """The launches of a step that no graph holds."""
    return round(figures.launches * (1 - figures.coverage))


def _too_slow(report: Report, budgets: Budgets) -> Iterator[Breach]:
    """Only a measurement counts, made of pairs in one job; it misses surely, and by enough time."""
    measured, least = report.measurement, budgets.min_speedup
    if measured is None or least is None or measured.speedup_high >= least:
        return
    missing_us = measured.graph_us - measured.eager_us / least if least else 0.0
    if missing_us >= budgets.min_change_us:
        message = (
            f"the graph is {measured.speedup:.2f}x as fast as eager (at most"
            f" {measured.speedup_high:.2f}x), less than the {least:g}x required (min_speedup)"
        )
        yield Breach("speedup", message, "budget")


def _amount(figure: str, value: int) -> str:
    one, counted_for = _WORDS[figure]
    return f"{count_text(value, one)} {counted_for}"


def with_causes(
    breaches: Sequence[Breach],
    findings: Sequence[CheckedFinding],
    *,
    now: Figures,
    before: Figures | None,
    budgets: Budgets,
    fail_on: FailOn,
) -> Iterator[Breach]:
    """Each breach, with the fingerprint of the new finding that it came with, if there is one.

    Only a finding that fails the check by itself takes a breach on, so that the exit code is the
    same with it and without. Without a baseline nothing says what was there before.
    """
    causes = sorted(
        (one for one in findings if one.is_new and fails(one.severity, fail_on)),
        key=lambda one: (SEVERITIES.index(one.severity), one.path, one.line),
    )
    exceeded = {one.figure for one in beyond_limits(before, budgets)} if before else set()
    for breach in breaches:
        is_old = breach.limit_from == "budget" and breach.figure in exceeded
        cause = None if before is None or is_old else _cause(breach, causes, now, before)
        yield msgspec.structs.replace(breach, belongs_to=cause.fingerprint) if cause else breach


def _cause(
    breach: Breach, causes: Sequence[CheckedFinding], now: Figures, before: Figures
) -> CheckedFinding | None:
    """Waits are counted, so they belong to findings only as far as these make the host wait.

    That fewer launches fit into graphs belongs to what a capture refuses, and so do launches and
    graphs, which no finding counts: they are told with it, not as its effect.
    """
    if breach.figure == "syncs":
        waits = [one for one in causes if one.finding.rule in SYNC_RULES]
        explained = sum(one.finding.count for one in waits)
        return waits[0] if waits and now.syncs - before.syncs <= explained else None
    if breach.figure in ("launches", "graphs", "coverage"):
        return next((one for one in causes if one.finding.effect != "replay-is-slow"), None)
    return None
