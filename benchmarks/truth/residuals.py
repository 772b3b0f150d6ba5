"""One measured step and the figures of its fold -> its predictions beside the truth; then their ranges.

A range's width is chosen for each family by the errors of all others, as `graphdoctor/estimate/widths.py`
has it for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import Any

from folds import Fitted, regions_or_whole
from measured_steps import CALIBRATED, DISTURBED, Measured, Timed, idle_graphs
from recorded_steps import Step

from graphdoctor.estimate import NO_CALLS, Observed
from graphdoctor.estimate.fitted import corners_from_eager
from graphdoctor.estimate.predict import corners
from graphdoctor.estimate.widths import LEAST, Width, capped
from graphdoctor.values.report import Range

GRAPHS = idle_graphs()
INSIDE = 0.8  # of held-out measurements that ranges are to hold
# Predictions from the measured eager step; those of one name share a width.
WHOLE, PARTS, SEGMENTS = "whole from eager", "parts from eager", "segments from eager"
_CONSTANT = (PARTS, SEGMENTS)


@dataclass(frozen=True)
class Judged:
    """One prediction of a step that nothing was fitted to. `printed` is what that run had said."""

    quantity: str
    width: str
    family: str
    case: str
    host: str
    strategy: str
    corners: Range
    truth: float
    printed: dict[str, float] | None = None
    range: Range | None = None

    @property
    def is_constant(self) -> bool:
        """Whether its range is as wide as any other's, whatever its corners."""
        return self.width in _CONSTANT

    @property
    def needed(self) -> float:
        """By how much the corners are to be stretched to hold the truth, or how wide it is to be, in log."""
        off = log(self.truth / self.corners.mid)
        if self.is_constant:
            return abs(off)
        if abs(off) <= LEAST:
            return 0.0
        end = self.corners.high if off > 0 else self.corners.low
        own = abs(log(end / self.corners.mid))
        return abs(off) / own if own else float("inf")

    @property
    def row(self) -> dict[str, Any]:
        assert self.range is not None
        return {
            "quantity": self.quantity,
            "family": self.family,
            "case": self.case,
            "host": self.host,
            "strategy": self.strategy,
            "predicted": [round(v, 4) for v in (self.range.low, self.range.mid, self.range.high)],
            "measured": round(self.truth, 4),
            "printed": self.printed,
        }


def judged_of(one: Measured, step: Step, fitted: Fitted) -> Iterator[Judged]:
    """Without a GPU for the host that ran it; and each strategy from the measured eager step."""

    def judged(quantity: str, width: str, strategy: str, found: Range, truth: float) -> Judged:
        return Judged(quantity, width, one.family, one.case, one.host, strategy, found, truth)

    if not one.is_fitted:
        for quantity, found, truth in _without_gpu(one, step, fitted):
            yield judged(quantity, quantity, "", found, truth)
    if one.host == CALIBRATED:
        return
    observed = Observed(one.eager_us, one.busy_us)
    profile = fitted.profile("server")
    for timed in one.timed:
        graphed = step.graphed.get(timed.strategy)
        if graphed is None or one.is_fitted or _is_disturbed(timed, GRAPHS.get(one.case)):
            continue
        regions = regions_or_whole(graphed.regions, step)
        found = corners_from_eager(
            step.iteration, profile, regions, observed=observed, calls=graphed.calls
        )
        is_whole = regions is None and graphed.calls == NO_CALLS
        width = WHOLE if is_whole else SEGMENTS if timed.strategy == "segments" else PARTS
        made = judged("speed-up from eager", width, timed.strategy, found, timed.speedup)
        yield replace(made, printed=timed.printed)


def _without_gpu(one: Measured, step: Step, fitted: Fitted) -> Iterator[tuple[str, Range, float]]:
    profile = fitted.profile(one.host)
    found = corners(step.iteration, profile)
    idle_us = GRAPHS.get(one.case)
    if one.host == CALIBRATED:
        yield "eager", found.eager_us, one.eager_us
        yield "speed-up", found.speedup, one.timed[0].speedup
        return
    yield "busy", found.busy_us, one.busy_us
    whole = next((timed for timed in one.timed if timed.strategy == "whole"), None)
    if idle_us is not None and "whole" in step.graphed and one.host != "server":
        yield "graph", found.graph_us, idle_us
    if not one.is_quiet:
        return
    yield "eager", found.eager_us, one.eager_us
    if whole is not None and "whole" in step.graphed and not _is_disturbed(whole, idle_us):
        if idle_us is None or one.host == "server":
            yield "graph", found.graph_us, whole.step_us
        yield "speed-up", found.speedup, whole.speedup


def _is_disturbed(timed: Timed, idle_us: float | None) -> bool:
    return timed.strategy == "whole" and idle_us is not None and timed.step_us > DISTURBED * idle_us


def with_ranges(judged: Sequence[Judged]) -> tuple[list[Judged], dict[str, float]]:
    """Each with its range, as wide as the other families ask for; and the widths that all ask for."""
    ranged = [
        replace(one, range=_width_of(one.width, judged, but=one.family).of(one.corners))
        for one in judged
    ]
    ranged = _capped(ranged)
    names = dict.fromkeys(one.width for one in judged)
    widths = {name: _width_of(name, judged) for name in names}
    return ranged, {name: each.times or each.least for name, each in widths.items()}


def _capped(ranged: Sequence[Judged]) -> list[Judged]:
    """A device is busy for no longer than the step takes."""
    eager = {(one.case, one.host): one.range for one in ranged if one.quantity == "eager"}
    return [
        replace(one, range=capped(one.range, limit))
        if one.quantity == "busy" and one.range and (limit := eager.get((one.case, one.host)))
        else one
        for one in ranged
    ]


def _width_of(name: str, judged: Sequence[Judged], *, but: str = "") -> Width:
    """The least that holds so many of them, rounded up to what a sample of this size can tell."""
    needed = sorted(one.needed for one in judged if one.width == name and one.family != but)
    place = min(len(needed), ceil(INSIDE * (len(needed) + 1)))
    least = needed[place - 1]
    return Width(0.0, least=least) if name in _CONSTANT else Width(least)
