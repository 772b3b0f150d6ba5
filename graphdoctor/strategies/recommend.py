"""The rows of strategies -> which one to use, in one sentence, or why none."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.model import Finding, Recommendation, StrategyOutcome

NONE = "none"
_LITTLE = 1.05  # a prediction is not that precise
_BUSY = "GD301"


def recommend(
    rows: Sequence[StrategyOutcome], findings: Sequence[Finding], *, then: str = ""
) -> Recommendation | None:
    """The fastest of those that were verified; None where nothing was compared.

    Measured rows are compared by measurement, else predicted ones by prediction. A comparator is
    recommended only where its interval lies above that of the best of ours.
    """
    if not rows:
        return None
    verified = [row for row in rows if row.status == "verified"]
    measured = [row for row in verified if row.measurement is not None]
    best = _best_measured(measured) if measured else _best_predicted(verified)
    if best is None:
        return Recommendation(NONE, _none(rows, verified, findings), then=then)
    return Recommendation(best.strategy, _sentence(best, measured), best.code, then)


def _best_measured(rows: Sequence[StrategyOutcome]) -> StrategyOutcome | None:
    faster = [
        row for row in rows if row.measurement is not None and row.measurement.word == "faster"
    ]
    ours = max((row for row in faster if row.is_ours), key=_speedup, default=None)
    others = max((row for row in faster if not row.is_ours), key=_speedup, default=None)
    if ours is None or others is None:
        return ours or others
    return others if _is_clearly_faster(others, ours) else ours


def _speedup(row: StrategyOutcome) -> float:
    assert row.measurement is not None
    return row.measurement.speedup


def _is_clearly_faster(one: StrategyOutcome, other: StrategyOutcome) -> bool:
    assert one.measurement is not None
    assert other.measurement is not None
    return one.measurement.speedup_low > other.measurement.speedup_high


def _best_predicted(rows: Sequence[StrategyOutcome]) -> StrategyOutcome | None:
    """The first of the fastest of ours: an earlier strategy asks for less."""
    ours = [row for row in rows if row.is_ours]
    paying = [row for row in ours if row.predicted is not None and row.predicted.mid > _LITTLE]
    return max(paying, key=lambda row: row.predicted.mid if row.predicted else 0.0, default=None)


def _sentence(best: StrategyOutcome, measured: Sequence[StrategyOutcome]) -> str:
    if best.measurement is None:
        assert best.predicted is not None
        low, mid, high = best.predicted.low, best.predicted.mid, best.predicted.high
        caution = "" if low > 1.0 else ", so that it may also bring nothing"
        return (
            f"{best.strategy}: {best.title}; its answers were verified, and the prediction is"
            f" {mid:.2f}x ({low:.2f} to {high:.2f}){caution}."
        )
    timed = best.measurement
    text = (
        f"{best.strategy}: {best.title}; its answers were verified, and it was measured at"
        f" {timed.speedup:.2f}x ({timed.speedup_low:.2f} to {timed.speedup_high:.2f})"
    )
    if best.is_ours:
        return f"{text}."
    ours = [row for row in measured if row.is_ours]
    if not ours:
        return f"{text}; none of graphdoctor's own ways was verified."
    rival = max(ours, key=_speedup)
    deviation = f" (it rounds differently, by up to {best.deviation:.1g})" if best.deviation else ""
    return (
        f"{text}, clearly faster than graphdoctor's own best, {rival.strategy} at"
        f" {_speedup(rival):.2f}x{deviation}."
    )


def _none(
    rows: Sequence[StrategyOutcome],
    verified: Sequence[StrategyOutcome],
    findings: Sequence[Finding],
) -> str:
    """Why nothing is recommended."""
    if any(finding.rule == _BUSY for finding in findings):
        return "none: the GPU is busy all the time, so that launching faster brings nothing."
    if any(row.measurement is not None for row in verified):
        return "none: what was verified is not faster than eager."
    if any(row.predicted is not None for row in verified):
        return "none: what was verified is not predicted to be faster than eager."
    if verified:
        return "none: what was verified could not be timed."
    if all(row.status == "timed-out" for row in rows):
        return "none: no strategy could be tried within the budget."
    return "none: no strategy that was tried could be verified."


def would_pay_more(rows: Sequence[StrategyOutcome]) -> str:
    """Which planned row is predicted above all that were verified, in one sentence; "" if none is."""
    if any(row.measurement is not None for row in rows):
        return ""
    verified = [row.predicted.mid for row in rows if row.status == "verified" and row.predicted]
    planned = [row for row in rows if row.status == "planned" and row.predicted is not None]
    best = max(planned, key=lambda row: row.predicted.mid if row.predicted else 0.0, default=None)
    if best is None or best.predicted is None:
        return ""
    if best.predicted.mid <= max([_LITTLE, *(mid * _LITTLE for mid in verified)]):
        return ""
    return f"On a GPU, {best.strategy} can be tried: {best.predicted.mid:.2f}x is predicted for it."
