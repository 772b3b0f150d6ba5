"""Compares the speed-ups of strategies, and says in one sentence which one to use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from graphdoctor.rules.not_launch_bound import NotLaunchBound
from graphdoctor.strategies.timing import break_even_calls
from graphdoctor.values.figures import Range, ratio_range, ratio_text, time_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.speed import NO_STRATEGY, Measurement, Recommendation, StrategyOutcome

_MOST_APART = 0.15  # of the usual time: eager steps that differ by more are noise
NOT_TRIED_YET = "not tried yet"  # the reason of a planned row, in a report that is not complete
_LITTLE = 1.05  # a prediction is not that precise


def recommend(
    rows: Sequence[StrategyOutcome], findings: Sequence[Finding], *, then: str = ""
) -> Recommendation | None:
    """The simplest of the fastest that were verified; None where nothing was compared.

    `rows` are in the order of STRATEGIES, which is that of what they ask for. Measured rows are
    compared by the time of their fast step, which does not depend on how busy the machine was while
    eager ran beside it; predicted ones by prediction. A comparator is recommended only where it is
    clearly faster than the best of ours.
    """
    if not rows:
        return None
    verified = [row for row in rows if row.status == "verified"]
    pairs = [
        (row, row.measurement)
        for row in rows
        if row.status == "verified" and row.measurement is not None
    ]
    contest = _Measured(tuple(pairs), reference_us(rows) if pairs else 0.0)
    best = _best_measured(contest) if contest.rows else _best_predicted(verified)
    if best is None:
        return Recommendation(NO_STRATEGY, _none(rows, verified, findings), then=then)
    return Recommendation(best.strategy, _sentence(best, contest), best.code, then)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Verified rows with a measurement, and what eager takes, in microseconds."""

    rows: tuple[tuple[StrategyOutcome, Measurement], ...]
    eager_us: float

    def faster(self, *, is_ours: bool) -> list[tuple[StrategyOutcome, Measurement]]:
        """Those that are faster than eager, in their own process and beside the usual time of eager."""
        return [
            (row, timed)
            for row, timed in self.rows
            if row.is_ours == is_ours and timed.word == "faster" and self.speedup(timed).low > 1.0
        ]

    def speedup(self, timed: Measurement) -> Range:
        return fair_speedup(timed, self.eager_us)


def _best_measured(contest: _Measured) -> StrategyOutcome | None:
    ours, others = contest.faster(is_ours=True), contest.faster(is_ours=False)
    if not ours:
        return _simplest(others)
    _, best = _fastest(ours)
    clearly_faster = [
        (row, timed) for row, timed in others if step_us(timed).high < step_us(best).low
    ]
    return _simplest(clearly_faster) or _simplest(ours)


def _fastest(
    pairs: Sequence[tuple[StrategyOutcome, Measurement]],
) -> tuple[StrategyOutcome, Measurement]:
    return min(pairs, key=lambda pair: pair[1].graph_us)


def _simplest(pairs: Sequence[tuple[StrategyOutcome, Measurement]]) -> StrategyOutcome | None:
    """The first that is not clearly slower than the fastest."""
    if not pairs:
        return None
    limit_us = step_us(_fastest(pairs)[1]).high
    return next(row for row, timed in pairs if step_us(timed).low <= limit_us)


def _best_predicted(rows: Sequence[StrategyOutcome]) -> StrategyOutcome | None:
    """The first of the fastest of ours: an earlier strategy asks for less."""
    ours = [row for row in rows if row.is_ours]
    paying = [row for row in ours if row.predicted is not None and row.predicted.mid > _LITTLE]
    return max(paying, key=lambda row: row.predicted.mid if row.predicted else 0.0, default=None)


def _sentence(best: StrategyOutcome, contest: _Measured) -> str:
    if best.measurement is None:
        assert best.predicted is not None
        caution = "" if best.predicted.low > 1.0 else ", so it may not be faster"
        return (
            f"{best.strategy}: {best.title}; its answers were verified, and the prediction is"
            f" {ratio_range(best.predicted)}{caution}."
        )
    fair = contest.speedup(best.measurement)
    text = (
        f"{best.strategy}: {best.title}; its answers were verified, and it was measured at"
        f" {fair.mid:.2f}x ({fair.low:.2f} to {fair.high:.2f}){_against(best.measurement, fair)}"
    )
    deviation = f" (it rounds differently, by up to {best.deviation:.1g})" if best.deviation else ""
    if best.is_ours:
        return f"{text}{deviation}."
    ours = [(row, timed) for row, timed in contest.rows if row.is_ours]
    if not ours:
        return f"{text}; none of graphdoctor's own strategies was verified."
    rival, timed = _fastest(ours)
    return (
        f"{text}, clearly faster than graphdoctor's own best, {rival.strategy} at"
        f" {contest.speedup(timed).mid:.2f}x{deviation}."
    )


def _against(timed: Measurement, fair: Range) -> str:
    """The table shows what its own pairs say; "" where that is the same."""
    is_same = f"{timed.speedup:.2f}" == f"{fair.mid:.2f}"
    return "" if is_same else " against the median of all rows' eager times"


def _none(
    rows: Sequence[StrategyOutcome],
    verified: Sequence[StrategyOutcome],
    findings: Sequence[Finding],
) -> str:
    """The reason to recommend none."""
    if any(finding.rule == NotLaunchBound.id for finding in findings):
        return "Keep eager: the GPU is busy all the time, and launching faster would not help."
    if any(row.measurement is not None for row in verified):
        return "Keep eager: no verified strategy is faster."
    if any(row.predicted is not None for row in verified):
        return "Keep eager: no verified strategy is predicted to be faster."
    if verified:
        return "Keep eager: no verified strategy could be timed."
    if any(row.reason == NOT_TRIED_YET for row in rows):
        return "Keep eager: no strategy is verified yet."
    if any(row.reason == "interrupted" for row in rows):
        return "Keep eager: no strategy was verified before Ctrl-C."
    if all(row.status == "timed-out" for row in rows):
        return "Keep eager: no strategy could be tried within the budget."
    return "Keep eager: no strategy that was tried could be verified."


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
    return f"On a GPU, {best.strategy} can be tried: {ratio_text(best.predicted.mid)} is predicted for it."


def reference_us(rows: Iterable[StrategyOutcome]) -> float:
    """What eager takes: the median of all rows' eager times. Raises StatisticsError without any."""
    return median(row.measurement.eager_us for row in rows if row.measurement is not None)


def step_us(measured: Measurement) -> Range:
    """Wall time of the fast step, and the narrower of the two intervals that hold it.

    The pairs' ratios are free of what slows both steps down alike, the step's own times of what slows
    eager alone: a host whose speed wavers does so where the device decides how long the step takes.
    """
    time = measured.graph_us
    low = time * measured.speedup / measured.speedup_high
    high = time * measured.speedup / measured.speedup_low
    own = measured.graph_interval_us
    if own is not None and own[1] - own[0] < high - low:
        low, high = own
    return Range(low, time, high)


def fair_speedup(measured: Measurement, reference: float) -> Range:
    """Against an eager step that takes `reference` microseconds, and not what it took in this process."""
    scale = reference / measured.eager_us
    return Range(
        measured.speedup_low * scale, measured.speedup * scale, measured.speedup_high * scale
    )


def with_noise_told(rows: Sequence[StrategyOutcome]) -> tuple[StrategyOutcome, ...]:
    """The rows; one whose eager step took another time than in the others says so.

    Its speed-up stays what its own pairs say; when it pays is counted by the others' eager time.
    """
    return tuple(_noise_told(row, rows) for row in rows)


def _noise_told(row: StrategyOutcome, rows: Sequence[StrategyOutcome]) -> StrategyOutcome:
    others = [one for one in rows if one is not row and one.measurement is not None]
    timed = row.measurement
    if timed is None or not others:
        return row
    usual, own = reference_us(others), timed.eager_us
    if not _is_apart(own, usual):
        return row
    if len(others) > 1 and not _is_apart(own, reference_us(rows)):
        return row  # one of two others is the odd one, which draws their median away
    which = "the others" if len(others) > 1 else f"the process of {others[0].strategy}"
    said = f"eager took {time_text(own)} here, {time_text(usual)} in {which}: noise of the machine"
    row = replace(row, reason="; ".join(filter(None, (row.reason, said))))
    if row.prepare_s is None or row.break_even_calls is None:
        return row
    fair = replace(timed, eager_us=reference_us(rows))
    return replace(row, break_even_calls=break_even_calls(row.prepare_s, fair))


def _is_apart(own: float, usual: float) -> bool:
    return abs(own - usual) > _MOST_APART * usual
