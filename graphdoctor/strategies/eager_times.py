"""Rows that were measured in processes of their own -> how far their eager times agree, and fair speed-ups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec.structs import replace

from graphdoctor.strategies.timing import break_even_calls
from graphdoctor.values.figures import time_text
from graphdoctor.values.report import Measurement, Range, StrategyOutcome

_MOST_APART = 0.15


def reference_us(rows: Iterable[StrategyOutcome]) -> float:
    """What eager takes: the median of all rows' eager times. Raises StatisticsError without any."""
    return median(row.measurement.eager_us for row in rows if row.measurement is not None)


def step_us(measured: Measurement) -> Range:
    """Wall time of the fast step, with what its pairs say of how sure that is.

    The pairs' ratios are free of what slows both steps down alike; their spread is the step's.
    """
    own = measured.graph_us
    return Range(
        own * measured.speedup / measured.speedup_high,
        own,
        own * measured.speedup / measured.speedup_low,
    )


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
