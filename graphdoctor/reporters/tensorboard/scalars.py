"""A report and a profiled run -> the figures that TensorBoard plots of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphdoctor.measure.profile import Profile
from graphdoctor.measure.speed import EAGER, ProfiledRun
from graphdoctor.trace.explain.lanes import busiest_device, lanes_in
from graphdoctor.trace.steps import find_steps
from graphdoctor.values.report import Range, Report

Scalar = tuple[str, float]
_EFFECTS = ("capture-fails", "replay-is-wrong", "replay-is-slow")


def scalars_of(run: ProfiledRun, report: Report) -> tuple[Scalar, ...]:
    """Tags and values. Both runs have what their own trace shows, so that a chart compares them.

    What an analysis says of the two together stands in the eager run: it is always there.
    """
    found = [*_measured(run, report), *_of_trace(run.profile)]
    if run.name == EAGER:
        found += [*_findings(report), *_speedup(report)]
    return tuple(found)


def _measured(run: ProfiledRun, report: Report) -> Iterator[Scalar]:
    """Wall time of one step without the profiler, where a GPU measured it."""
    measurement = report.measurement
    if measurement is not None:
        yield (
            "step/measured_us",
            measurement.eager_us if run.name == EAGER else measurement.graph_us,
        )


def _of_trace(profile: Profile) -> Iterator[Scalar]:
    """Per step, and shares of the profiled span. Nothing without a GPU's events."""
    trace = profile.trace
    if not len(trace.device_events):
        return
    device = busiest_device(trace)
    steps = find_steps(trace, device).counted
    times = lanes_in(trace, device, [step.window for step in steps])
    span = times.span_ns or 1
    yield "trace/launches", times.launches / len(steps)
    yield "trace/device_events", times.events / len(steps)
    yield "trace/device_busy_us", times.busy_ns / 1e3 / len(steps)
    yield "trace/device_busy_share", times.busy_ns / span
    yield "trace/launch_bound_share", times.launch_bound_ns / span
    yield "trace/sync_wait_share", times.sync_wait_ns / span
    yield "trace/device_gap_share", times.device_gap_ns / span


def _findings(report: Report) -> Iterator[Scalar]:
    counts = Counter[str](finding.effect for finding in report.findings)
    for effect in _EFFECTS:
        yield f"findings/{effect}", counts[effect]
    yield "findings/regions", len(report.regions)


def _speedup(report: Report) -> Iterator[Scalar]:
    found = report.estimate
    if found is not None:
        yield from _range("speedup/predicted", found.speedup)
        yield from _range("step/predicted_graph_us", found.graph_us)
        if found.basis == "predicted":
            yield from _range("step/predicted_eager_us", found.eager_us)
        yield from _range("shares/launch_bound", found.launch_bound_share)
    measured = report.measurement
    if measured is not None:
        bounds = Range(measured.speedup_low, measured.speedup, measured.speedup_high)
        yield from _range("speedup/measured", bounds)


def _range(tag: str, value: Range) -> Iterator[Scalar]:
    yield tag, value.mid
    yield f"{tag}_low", value.low
    yield f"{tag}_high", value.high
