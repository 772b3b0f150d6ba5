"""Measured steps and their recordings -> the figures of the profiles that are fitted to them.

Four groups, one after the other: what training costs the host, by the eager times; how much slower the
slower host is, by the steps that both ran; the gap between nodes of a graph, by whole steps; what calling
graphs of parts costs, by the speed-ups of modules and segments. Everything else is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from tempfile import NamedTemporaryFile

import numpy as np
from kernel_figures import SHARES, with_paths
from measured_steps import CALIBRATED, Measured, calibrated_host
from msgspec.structs import replace
from recorded_steps import Step

from graphdoctor.estimate import Calls, Observed, launches
from graphdoctor.estimate.fitted import MIDDLE, factors_of, profile_scaled, scaled_piece
from graphdoctor.estimate.gpus import DeviceProfile, Figure, load_profile
from graphdoctor.estimate.hosts import load_host, on_host
from graphdoctor.estimate.layout import Piece, lay_out
from graphdoctor.estimate.predict import graph_pieces
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.values.report import Range

Regions = Sequence[Sequence[int]]
_PACED_BY_HOST = (
    0.8  # of the eager time the device is busy at most, where the host's time can be told
)
_OF_OPTIMIZER = (
    0.4  # of what a parameter costs; the engine has the rest. Assumed: modules fit it best
)
# Before anything is fitted, and by how much it may differ: a node, a step that trains, a parameter.
_PRIOR, _SPREAD, _NOISE = np.array([4.0, 250.0, 30.0]), np.array([4.0, 250.0, 30.0]), 0.15
_GAPS = tuple(round(0.05 * number, 2) for number in range(2, 25))
_STEPS = (0, 10, 20, 30, 50, 80, 120, 180, 260)
# Where a step's time by the host time of its calls is computed; between them it is all but straight.
_HOST_US = (0, 25, 50, 100, 150, 200, 300, 450, 700, 1000, 2000, 4000, 8000, 16000)
_CALLS = {
    "modules": ("trained_module",),
    "segments": ("segment", "trained_segment", "segment_parameter"),
}


@dataclass(frozen=True)
class Fitted:
    """The fitted figures by name, in us; `slow_server` in times of the server."""

    figures: dict[str, float]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {value:.3g}" for name, value in self.figures.items())

    def profile(self, host: str) -> DeviceProfile:
        """The H200's profile with these figures, on the host."""
        found = with_figures(load_profile("h200"), self.figures)
        if host == "server":
            return found
        if host == CALIBRATED:
            with NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(calibrated_host())
                file.flush()
                return on_host(found, load_host(file.name))
        slow = load_host(host)
        times = self.figures["slow_server"] / slow.python.mid
        factor = _moved(slow.python, times)
        return on_host(found, replace(slow, **dict.fromkeys(slow.__struct_fields__[2:], factor)))


def with_figures(profile: DeviceProfile, figures: Mapping[str, float]) -> DeviceProfile:
    """The profile with these middles; bounds keep their distance in ratio."""
    paths = {name: value for name, value in figures.items() if "." in name or name in SHARES}
    profile = with_paths(profile, paths)
    for group in (profile.host_us, profile.call_us):
        names = [name for name in group.__struct_fields__ if name in figures]
        changed = {
            name: _moved(getattr(group, name), figures[name] / max(1e-9, getattr(group, name).mid))
            for name in names
        }
        field = "host_us" if group is profile.host_us else "call_us"
        profile = replace(profile, **{field: replace(group, **changed)})
    if "node_gap" in figures:
        gap, old = figures["node_gap"], profile.node_gap_us
        profile = replace(
            profile, node_gap_us=Figure(min(old.low, gap), gap, max(old.high, gap), old.source)
        )
    return profile


def _moved(figure: Figure, times: float) -> Figure:
    return Figure(figure.low * times, figure.mid * times, figure.high * times, figure.source)


def fitted_to(
    measured: Sequence[Measured], steps: Mapping[str, Step], kernels: Mapping[str, float]
) -> Fitted:
    """Fit all groups to these steps, with kernels' figures that were fitted before."""
    figures = {**kernels, "slow_server": _slow_server(measured)}
    figures |= _training(measured, steps, figures["slow_server"])
    rows = list(_rows(measured, steps, Fitted(figures)))
    whole = [row for row in rows if row.strategy == "whole"]
    figures["node_gap"] = min(_GAPS, key=lambda gap: _error_of_gap(whole, gap))
    profile = Fitted(figures).profile("server")
    for strategy, names in _CALLS.items():  # a module's call in inference is measured by itself
        figures |= _calls([row for row in rows if row.strategy == strategy], names, profile)
    return Fitted(figures)


def _slow_server(measured: Sequence[Measured]) -> float:
    fast = {one.case: one.eager_us for one in measured if one.host == "server"}
    slow = {one.case: one.eager_us for one in measured if one.host != "server"}
    return median(slow[case] / fast[case] for case in fast if case in slow)


def _training(
    measured: Sequence[Measured], steps: Mapping[str, Step], slow_server: float
) -> dict[str, float]:
    """Least squares of relative errors, each family of as much weight as any other."""
    used = [
        one
        for one in measured
        if steps[one.case].trains and one.busy_us < _PACED_BY_HOST * one.eager_us
    ]
    names = ("backward_node", "training_step", "parameter")
    rows, aims, weights = [], [], []
    for one in used:
        times = slow_server if one.host != "server" else 1.0
        truth = one.eager_us / times
        nothing, *each = (_host_us(steps[one.case], name) for name in ("", *names))
        rows.append([(with_one - nothing) / truth for with_one in each])
        aims.append(1.0 - nothing / truth)
        alike = sum(other.family == one.family for other in used)
        weights.append(1.0 / _NOISE / alike**0.5)
    scale = np.array(weights)[:, None]
    left = np.vstack([np.array(rows) * scale, np.diag(1.0 / _SPREAD)])
    right = np.concatenate([np.array(aims) * scale[:, 0], _PRIOR / _SPREAD])
    node, step, parameter = np.maximum(np.linalg.lstsq(left, right, rcond=None)[0], 0.0).tolist()
    return {
        "backward_node": node,
        "training_step": step,
        "parameter": _OF_OPTIMIZER * parameter,
        "gradient": (1.0 - _OF_OPTIMIZER) * parameter,
    }


def _host_us(step: Step, name: str) -> float:
    """Host time on a server with one of the training figures at 1 us and the others at none."""
    each = {"backward_node": 0.0, "training_step": 0.0, "parameter": 0.0, "gradient": 0.0}
    if name:
        each[name] = 1.0
    if name == "parameter":
        each |= {"parameter": _OF_OPTIMIZER, "gradient": 1.0 - _OF_OPTIMIZER}
    exact = {key: Figure(value, value, value, "fitted") for key, value in each.items()}
    profile = load_profile("h200")
    profile = replace(profile, host_us=replace(profile.host_us, **exact))
    pieces = eager_pieces(step.iteration.ops, profile, autograd=step.trains)
    return sum(piece.host_us.mid for piece in pieces)


@dataclass(frozen=True)
class _Row:
    """One measured strategy, laid out but for what is to be fitted."""

    strategy: str
    wall_us: float
    speedup: float
    calls: Calls
    span_us: Callable[[DeviceProfile, float], float]  # gaps of a profile, host time of calls

    def error(self, span_us: float) -> float:
        return abs(log(self.wall_us / span_us / self.speedup))


def _rows(
    measured: Sequence[Measured],
    steps: Mapping[str, Step],
    fitted: Fitted,
) -> Iterator[_Row]:
    profile = fitted.profile("server")
    for one in measured:
        step = steps[one.case]
        timed = [t for t in one.timed if t.strategy in step.graphed]
        if not timed:
            continue
        eager = tuple(
            eager_pieces(
                step.iteration.ops, profile, autograd=step.trains, events=step.iteration.events
            )
        )
        factors = factors_of(eager, profile, Observed(one.eager_us, one.busy_us))
        here = profile_scaled(profile, factors.host)
        for each in timed:
            graphed = step.graphed[each.strategy]
            regions = regions_or_whole(graphed.regions, step)
            left = [
                scaled_piece(piece, factors)
                for piece in graph_pieces(step.iteration, profile, regions, eager)
            ]

            def span_us(
                gaps: DeviceProfile,
                host_us: float,
                left: list[Piece] = left,
                here: DeviceProfile = here,
                host: float = factors.host,
            ) -> float:
                value = host_us * host
                first = [Piece(Range(value, value, value), Range(0.0, 0.0, 0.0), 0)]
                profile = replace(here, node_gap_us=gaps.node_gap_us)
                return lay_out([*first, *left], profile, MIDDLE).span_us

            yield _Row(each.strategy, one.eager_us, each.speedup, graphed.calls, span_us)


def regions_or_whole(regions: Regions, step: Step) -> Regions | None:
    """None, which is the whole step, where one graph holds all that is launched."""
    if len(regions) != 1:
        return regions
    inside = set(regions[0])
    left = any(launches(op) and op.index not in inside for op in step.iteration.ops)
    return regions if left else None


def _error_of_gap(rows: Sequence[_Row], gap: float) -> float:
    profile = with_figures(load_profile("h200"), {"node_gap": gap})
    return sum(row.error(row.span_us(profile, 0.0)) for row in rows)


def _calls(rows: Sequence[_Row], names: Sequence[str], profile: DeviceProfile) -> dict[str, float]:
    """The costs of calls that leave the least error in all, one after the other and again."""
    found = {name: getattr(profile.call_us, name).mid for name in names}
    tables = [[row.span_us(profile, host_us) for host_us in _HOST_US] for row in rows]

    def error(costs: Mapping[str, float]) -> float:
        total = 0.0
        for row, spans_us in zip(rows, tables, strict=True):
            host_us = sum(getattr(row.calls, name) * cost for name, cost in costs.items())
            total += row.error(float(np.interp(host_us, _HOST_US, spans_us)))
        return total

    least = error(found)
    for _ in range(2):
        for name in names:
            for value in _STEPS:
                if (left := error({**found, name: float(value)})) < least - 1e-9:
                    least, found = left, {**found, name: float(value)}
    return found
