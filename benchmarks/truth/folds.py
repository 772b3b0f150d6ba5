"""Measured steps and their recordings -> the figures of the profiles that are fitted to them.

Three groups, one after the other: what hosts need, by the eager times (host_figures.py); the gap between nodes
of a graph, by whole steps; what calling graphs of parts costs, by the speed-ups of modules and segments.
Everything else is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_in
from math import log

import numpy as np
from host_figures import REFERENCE, SLOW, host_profile
from kernel_figures import with_paths
from measured_steps import Measured, judges
from msgspec.structs import replace
from recorded_steps import Step

from graphdoctor.estimate import Calls, Observed, launches
from graphdoctor.estimate.calls import handed_over
from graphdoctor.estimate.fitted import (
    MIDDLE,
    calling_factors,
    factors_of,
    profile_scaled,
    scaled_piece,
    timed_us,
)
from graphdoctor.estimate.gpus import DeviceProfile, Figure, load_profile
from graphdoctor.estimate.hosts import on_host
from graphdoctor.estimate.predict import graph_pieces
from graphdoctor.estimate.ranges import ZERO
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.estimate.two_lanes import Piece, Work, work_of

Regions = Sequence[Sequence[int]]
_GAPS = tuple(round(0.05 * number, 2) for number in range(21))
_STEPS = (0, 10, 20, 30, 40, 50, 65, 80, 100, 120, 150, 180, 220, 260, 320)
_EACH = (0, 1, 2, 4, 6, 8, 10, 12, 15, 20, 30)  # for each parameter
# Where a step's time by the host time of its calls is computed; between them it is all but straight.
_HOST_US = (0, 25, 50, 100, 150, 200, 300, 450, 700, 1000, 2000, 4000, 8000, 16000)
_CALLS = {
    "modules": ("trained_module",),
    "segments": ("trained_segment", "segment_parameter"),  # in inference: call_figures.py
}
_OF_EACH = ("segment_parameter",)
_GAP = "node_gap_us"
_CALLING = Piece(ZERO, ZERO, 0)


@dataclass(frozen=True)
class Fitted:
    """The fitted figures by path, in us; speeds of hosts by name, in times of the server."""

    figures: dict[str, float]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {value:.3g}" for name, value in self.figures.items())

    def profile(self, host: str) -> DeviceProfile:
        """The H200's profile with these figures, on the host."""
        found = with_figures(load_profile("h200"), self.figures)
        return on_host(found, host_profile(host, self.figures)) if host != "server" else found


def with_figures(profile: DeviceProfile, figures: Mapping[str, float]) -> DeviceProfile:
    """The profile with these middles; bounds keep their distance in ratio, and those of the gap are kept."""
    gap = figures.get(_GAP, profile.node_gap_us.mid)
    paths = {name: each for name, each in figures.items() if name not in (_GAP, SLOW, REFERENCE)}
    old = profile.node_gap_us
    found = with_paths(profile, paths)
    return replace(
        found, node_gap_us=Figure(min(old.low, gap), gap, max(old.high, gap), old.source)
    )


def fitted_to(
    measured: Sequence[Measured], steps: Mapping[str, Step], known: Mapping[str, float]
) -> Fitted:
    """Fit graphs' figures to these steps, with those of kernels and hosts that were fitted before."""
    figures = dict(known)
    rows = list(_rows(measured, steps, Fitted(figures)))
    whole = [row for row in rows if row.strategy == "whole"]
    gap = figures[_GAP] = min(_GAPS, key=lambda gap: _error_of_gap(whole, gap))
    for strategy, names in _CALLS.items():  # calls in inference are measured by themselves
        costs = _calls([row for row in rows if row.strategy == strategy], names, gap)
        figures |= {f"call_us.{name}": cost for name, cost in costs.items()}
    return Fitted(figures)


@dataclass(frozen=True)
class _Row:
    """One measured strategy, laid out but for what is to be fitted."""

    strategy: str
    wall_us: float
    speedup: float
    calls: Calls
    work: Work  # the first row of which is the calls', with gaps of 1 us
    host: float  # how many times the profile's figures calling takes
    most_calls: int  # in a row

    def span_us(self, gap: float, calls_us: float) -> float:
        host_us = self.work.host_us.copy()
        host_us[0] = calls_us * self.host
        work = replace_in(self.work, host_us=host_us, inner_us=self.work.inner_us * gap)
        return timed_us(work, self.most_calls)

    def error(self, span_us: float) -> float:
        return abs(log(self.wall_us / span_us / self.speedup))


def _rows(
    measured: Sequence[Measured], steps: Mapping[str, Step], fitted: Fitted
) -> Iterator[_Row]:
    profile = with_figures(fitted.profile("server"), {_GAP: 1.0})
    for one in measured:
        step = steps[one.case]
        timed = [t for t in one.timed if t.strategy in step.graphed and judges(one, t)]
        if not timed:
            continue
        eager = tuple(eager_pieces(step.iteration.ops, profile, events=step.iteration.events))
        for each in timed:
            factors = factors_of(eager, profile, Observed(each.eager_us, each.busy_us))
            graphed = step.graphed[each.strategy]
            regions = regions_or_whole(graphed.regions, step)
            left = [
                scaled_piece(piece, factors)
                for piece in (
                    *handed_over(step.iteration, profile, regions, graphed.calls),
                    *graph_pieces(step.iteration, profile, regions, eager),
                )
            ]
            work = work_of([_CALLING, *left], profile_scaled(profile, factors.host), MIDDLE)
            yield _Row(
                each.strategy,
                each.eager_us,
                each.speedup,
                graphed.calls,
                work,
                calling_factors(factors).host,
                each.calls,
            )


def regions_or_whole(regions: Regions, step: Step) -> Regions | None:
    """None, which is the whole step, where one graph holds all that is launched."""
    if len(regions) != 1:
        return regions
    inside = set(regions[0])
    left = any(launches(op) and op.index not in inside for op in step.iteration.ops)
    return regions if left else None


def _error_of_gap(rows: Sequence[_Row], gap: float) -> float:
    return sum(row.error(row.span_us(gap, 0.0)) for row in rows)


def _calls(rows: Sequence[_Row], names: Sequence[str], gap: float) -> dict[str, float]:
    """The costs of calls that leave the least error in all, one after the other and again."""
    start = load_profile("h200").call_us
    found = {name: getattr(start, name).mid for name in names}
    tables = [[row.span_us(gap, host_us) for host_us in _HOST_US] for row in rows]

    def error(costs: Mapping[str, float]) -> float:
        total = 0.0
        for row, spans_us in zip(rows, tables, strict=True):
            host_us = sum(getattr(row.calls, name) * cost for name, cost in costs.items())
            total += row.error(float(np.interp(host_us, _HOST_US, spans_us)))
        return total

    least = error(found)
    for _ in range(2):
        for name in names:
            for value in _EACH if name in _OF_EACH else _STEPS:
                if (left := error({**found, name: float(value)})) < least - 1e-9:
                    least, found = left, {**found, name: float(value)}
    return found
