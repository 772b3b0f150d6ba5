"""What the analysis itself found out about the whole step as one graph -> its row, without trying it again."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.strategies.evidence import Evidence
from graphdoctor.strategies.strategy import Known
from graphdoctor.strategies.timing import Timed, profile_beside
from graphdoctor.strategies.trial import with_cost, with_times, with_verification
from graphdoctor.values.captures import CaptureOutcome, outcome_of_whole_step
from graphdoctor.values.speed import StrategyOutcome

_MAY_BE_WRONG = "its replays were right in this run, but "


def whole_row(
    row: StrategyOutcome, evidence: Evidence, known: Known, *, profile: DeviceProfile
) -> StrategyOutcome | None:
    """The row, from what was foreseen and what came of the capture; None where none was tried."""
    outcome = outcome_of_whole_step(evidence.captured.outcomes)
    if outcome is None:
        return None
    if outcome.status == "refused":
        return replace(
            row,
            status="refused",
            reason=row.reason if row.status == "unfit" else outcome.reason,
            location=outcome.location,
            predicted=None,
            captured_share=None,
            code="",
        )
    return _captured(row, outcome, evidence, known, profile=profile)


def _captured(
    row: StrategyOutcome,
    outcome: CaptureOutcome,
    evidence: Evidence,
    known: Known,
    *,
    profile: DeviceProfile,
) -> StrategyOutcome:
    verification = outcome.verification
    if verification is None:
        return replace(row, status="not-verified", reason="its replay was not compared", code="")
    if row.status == "unfit" and verification.status == "verified":
        reason = _MAY_BE_WRONG + row.reason
        return replace(row, status="not-verified", reason=reason, verification=verification)
    row = with_cost(with_verification(row, verification, known), evidence.captured.cost)
    timed = _timed(evidence, profile)
    return row if timed is None else with_times(row, timed)


def _timed(evidence: Evidence, profile: DeviceProfile) -> Timed | None:
    """The analysis' own measurement, and a profile of the graph that it made."""
    session, step = evidence.session, evidence.captured.step
    if evidence.speed.measurement is None or step is None:
        return None
    inputs = session.inputs(0)
    measured = evidence.speed.measurement
    seen = profile_beside(
        session, lambda: step.call(inputs), start=step.start, measured=measured, profile=profile
    )
    return Timed(measured, *seen)
