"""A report and a profiled run -> the figures that TensorBoard plots of it."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.measure.profile import Profile
from graphdoctor.measure.speed import EAGER, ProfiledRun
from graphdoctor.trace.explain.lanes import busiest_device, lanes_in
from graphdoctor.trace.steps import find_steps
from graphdoctor.values.report import Range, Report

Scalar = tuple[str, float]


def scalars_of(run: ProfiledRun, report: Report) -> tuple[Scalar, ...]:
    """Tags and values, few enough to be looked at, one point of each curve. Both runs have what their own trace
    shows, so that a chart compares them.

    What an analysis says of the two together stands in the eager run: it is always there. Ranges are in the text.
    """
    found = [*_measured(run, report), *_of_trace(run.profile)]
    if run.name == EAGER:
        found += [*_findings(report), *_predicted(report), *_speedup(report)]
    return tuple(found)


def _measured(run: ProfiledRun, report: Report) -> Iterator[Scalar]:
    """Wall time of one step without the profiler, where a GPU measured it."""
    measurement = report.measurement
    if measurement is not None:
        is_eager = run.name == EAGER
        yield "step/measured_us", measurement.eager_us if is_eager else measurement.graph_us


def _of_trace(profile: Profile) -> Iterator[Scalar]:
    """Of one step as profiled. Nothing without a GPU's events."""
    trace = profile.trace
    if not len(trace.device_events):
        return
    device = busiest_device(trace)
    steps = find_steps(trace, device).counted
    times = lanes_in(trace, device, [step.window for step in steps])
    span = times.span_ns or 1
    yield "trace/launches", times.launches / len(steps)
    yield "trace/device_busy_us", times.busy_ns / 1e3 / len(steps)
    yield "trace/device_busy_share", times.busy_ns / span
    yield "trace/launch_bound_share", times.launch_bound_ns / span


def _findings(report: Report) -> Iterator[Scalar]:
    """How many stand: what forbids a graph, and what only makes it slow."""
    slow = [
        finding.effect == "replay-is-slow"
        for finding in report.findings
        if finding.suppressed is None
    ]
    yield "findings/unsafe", len(slow) - sum(slow)
    yield "findings/slow", sum(slow)


def _predicted(report: Report) -> Iterator[Scalar]:
    found = report.estimate
    if found is None:
        return
    if found.basis == "predicted":
        yield "step/predicted_us", _shown(found.eager_us)
        yield "step/predicted_launch_bound_share", _shown(found.launch_bound_share)
    yield "step/predicted_with_graphs_us", _shown(found.graph_us)


def _speedup(report: Report) -> Iterator[Scalar]:
    if report.estimate is not None:
        yield "speedup/predicted", _shown(report.estimate.speedup)
    if report.measurement is not None:
        yield "speedup/measured", report.measurement.speedup


def _shown(predicted: Range) -> float:
    """To three digits, like the page: charts would stretch what changes beyond them over their height."""
    return float(f"{predicted.mid:.3g}")
