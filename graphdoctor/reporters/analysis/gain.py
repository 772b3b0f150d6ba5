"""Shows what a graph would save, clearly predicted or measured."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import (
    bytes_text,
    ratio_range,
    ratio_text,
    share_range,
    time_range,
    time_text,
)
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Estimate, LaunchSkew, Measurement, memory_text

_SPEEDS = {2.0: "half as fast", 0.5: "twice as fast"}
_SPEEDUP = "Speedup"
_AS_GRAPH = "As a graph"
SPEED_STYLES = {"faster": "bold green", "slower": "bold red", "no change": "bold yellow"}


def write_gain(page: Page, report: Report) -> None:
    """The section; prediction beside measurement whenever both exist."""
    if report.measurement is not None:
        page.heading("Speedup", f"measured on {report.measurement.gpu}")
        style = SPEED_STYLES[report.measurement.word]
        for label, text in measurement_rows(report.measurement):
            page.labelled(f"  {label}", text, style=style if label == _SPEEDUP else "")
    if report.estimate is not None:
        _write_estimate(page, report.estimate)
    if report.memory is not None:
        total = bytes_text(report.memory.total_bytes)
        whose = memory_text(report.memory)
        page.labelled("  Memory", f"{total} for as long as the graph lives: {whose}")


def basis_text(estimate: Estimate) -> str:
    """What a gain rests on. No graph ran for an estimate, so that its gain is never called measured."""
    if estimate.basis == "measured":
        return f"predicted from a profile on {estimate.gpu}"
    return f"predicted for {estimate.gpu}"


def fed_by_text(estimate: Estimate) -> str:
    """ " with ..."; "" where the host was the machine at hand."""
    return f" with {estimate.host}" if estimate.host else ""


def other_hosts_text(estimate: Estimate) -> str:
    """How much of the speed-up the host's own speed makes."""
    said: list[str] = []
    for other in estimate.on_other_hosts:
        speed = _SPEEDS.get(other.times, f"on which all takes {other.times:g} times as long")
        said.append(f"{ratio_text(other.speedup)} on {'one' if said else 'a host'} {speed}")
    return "; ".join(said)


def _skew_text(skew: LaunchSkew) -> str:
    said = [
        f"{time_text(one.median_us)} {name} (95% within {time_text(one.p95_us)})"
        for name, one in (("eager", skew.eager), ("as a graph", skew.graph))
    ]
    return f"{', '.join(said)}, in the median of the collectives, under the profiler"


def measurement_rows(measured: Measurement) -> Iterator[tuple[str, str]]:
    """Labels and text of what was timed, and how."""
    yield (
        _SPEEDUP,
        f"{measured.speedup:.2f}x, {measured.word} ({measured.confidence:.0%} interval"
        f" {measured.speedup_low:.2f} to {measured.speedup_high:.2f})",
    )
    yield "Eager step", time_text(measured.eager_us)
    yield "As a graph", time_text(measured.graph_us)
    yield (
        "Method",
        f"wall clock, {measured.blocks} interleaved pairs of blocks of"
        f" {measured.calls_per_block} calls"
        + (
            f", each as long as on the slowest of {measured.ranks} ranks"
            if measured.ranks > 1
            else ""
        ),
    )
    if measured.skew is not None:
        yield "Launch skew", _skew_text(measured.skew)
    if measured.clock_note:
        yield "Clocks", measured.clock_note


def _write_estimate(page: Page, estimate: Estimate) -> None:
    page.heading("Time of one step", basis_text(estimate))
    for label, text in estimate_rows(estimate):
        page.labelled(f"  {label}", text, style="bold" if label in (_AS_GRAPH, _SPEEDUP) else "")
    for term in estimate.terms:
        page.labelled("  Figure", f"{term.name}: {term.value} ({term.source})")


def estimate_rows(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Labels and text of a step's times; the notes last."""
    measured = ", measured" if estimate.basis == "measured" else ""
    yield (
        "Launch-bound",
        f"the GPU waits for launches for {share_range(estimate.launch_bound_share)} of an eager step; a graph also"
        " shortens the gaps between kernels",
    )
    yield _AS_GRAPH, time_range(estimate.graph_us)
    yield "Eager", time_range(estimate.eager_us) + measured
    yield _SPEEDUP, ratio_range(estimate.speedup)
    if estimate.on_other_hosts:
        yield "Other host", other_hosts_text(estimate)
    yield (
        "Made of",
        f"{estimate.launches:,} launches; host {time_range(estimate.host_us)};"
        f" device busy {time_range(estimate.device_busy_us)}",
    )
    yield from (("Note", note) for note in estimate.notes)
