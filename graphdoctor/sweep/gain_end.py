"""The rows of a sweep -> the batch size at which the gain ends, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphdoctor.values.report import Range
from graphdoctor.values.sweep import SMALLEST_GAIN, GainEnd, SweepRow


def gain_end(rows: Sequence[SweepRow]) -> GainEnd:
    """The first size from which the speed-up's upper bound stays below `SMALLEST_GAIN`.

    A size without a speed-up says nothing, and is named. Where the largest sizes' bounds lie on
    both sides, nobody can tell.
    """
    judged = [row for row in rows if row.speedup is not None]
    if not judged:
        return _without_speedups(rows)
    bounds = [(row.batch, row.speedup) for row in judged if row.speedup is not None]
    predicted = " (predicted)" if all(row.status == "predicted" for row in judged) else ""
    rest = _not_judged(rows)
    ended = _first_of_tail(bounds, lambda speedup: speedup.high < SMALLEST_GAIN)
    if ended == bounds[0][0]:
        text = f"A graph brings less than {SMALLEST_GAIN:g}x at every size{predicted}.{rest}"
        return GainEnd("never-there", text, ended)
    if ended is not None:
        text = f"From batch {ended} on, a graph brings less than {SMALLEST_GAIN:g}x{predicted}."
        return GainEnd("ends", text + rest, ended)
    largest, speedup = bounds[-1]
    shown = f"{speedup.mid:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})"
    if speedup.low >= SMALLEST_GAIN:
        text = f"The gain does not end within these sizes: {shown} at batch {largest}{predicted}."
        return GainEnd("does-not-end", text + rest)
    doubtful = _first_of_tail(bounds, lambda speedup: speedup.low < SMALLEST_GAIN)
    text = (
        f"Whether the gain ends within these sizes cannot be told: from batch {doubtful} on, the"
        f" bounds lie on both sides of {SMALLEST_GAIN:g}x, with {shown} at batch {largest}"
        f"{predicted}.{_by_the_middle(bounds)}"
    )
    return GainEnd("cannot-tell", text + rest)


def _by_the_middle(bounds: Sequence[tuple[int, Range]]) -> str:
    """What the likeliest figures say, for a reader who has to choose all the same."""
    ended = _first_of_tail(bounds, lambda speedup: speedup.mid < SMALLEST_GAIN)
    if ended is None:
        return " By the middle of the bounds it does not end."
    return f" By the middle of the bounds it ends at batch {ended}."


def _first_of_tail(
    bounds: Sequence[tuple[int, Range]], holds: Callable[[Range], bool]
) -> int | None:
    """The smallest size from which on all hold; None where not even the largest does."""
    found = None
    for batch, speedup in reversed(bounds):
        if not holds(speedup):
            break
        found = batch
    return found


def _not_judged(rows: Sequence[SweepRow]) -> str:
    silent = [str(row.batch) for row in rows if row.speedup is None]
    return f" Nothing can be said of batch {', '.join(silent)}." if silent else ""


def _without_speedups(rows: Sequence[SweepRow]) -> GainEnd:
    reasons = [row.reason for row in rows if row.status == "no-graph"]
    if not reasons:
        return GainEnd("unknown", "No size could be judged, so nothing is known about the gain.")
    return GainEnd("no-graph", f"No graph can be captured that would pay. {reasons[0]}")
