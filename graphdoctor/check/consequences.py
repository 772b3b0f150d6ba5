"""Figures that got worse and new findings -> which of them belong to a finding: one cause, one error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from graphdoctor.check.settings.settings import Budgets
from graphdoctor.check.step_figures import SYNC_RULES, beyond_limits
from graphdoctor.values.check import (
    SEVERITIES,
    Breach,
    CheckedFinding,
    FailOn,
    Figures,
    fails,
)


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
