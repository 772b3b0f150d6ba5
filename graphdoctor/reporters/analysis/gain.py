"""Estimate and measurement -> page: what a graph would save, clearly predicted or measured."""

from __future__ import annotations

from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import ratio_range, ratio_text, share_range, time_range, time_text
from graphdoctor.values.report import Estimate, Measurement, Report

_SPEEDS = {2.0: "half as fast", 0.5: "twice as fast"}
_SPEED_STYLES = {"faster": "bold green", "slower": "bold red", "no change": "bold yellow"}


def write_gain(page: Page, report: Report) -> None:
    """The section; prediction beside measurement whenever both exist."""
    if report.measurement is not None:
        _write_measurement(page, report.measurement)
    if report.estimate is not None:
        _write_estimate(page, report.estimate)


def basis_text(estimate: Estimate) -> str:
    """What a gain rests on. No graph ran for an estimate, so that its gain is never called measured."""
    if estimate.basis == "measured":
        return f"predicted from a profile on {estimate.gpu}"
    return f"predicted for {estimate.gpu}"


def fed_by_text(estimate: Estimate) -> str:
    """ " fed by ..."; "" where the host was the machine at hand."""
    return f" fed by {estimate.host}" if estimate.host else ""


def other_hosts_text(estimate: Estimate) -> str:
    """How much of the speed-up the host's own speed makes."""
    said: list[str] = []
    for other in estimate.on_other_hosts:
        speed = _SPEEDS.get(other.times, f"on which all takes {other.times:g} times as long")
        said.append(f"{ratio_text(other.speedup)} on {'one' if said else 'a host'} {speed}")
    return "; ".join(said)


def _write_measurement(page: Page, measured: Measurement) -> None:
    page.heading("Speed-up", f"measured on {measured.gpu}")
    page.labelled(
        "  Speed-up",
        f"{measured.speedup:.2f}x, {measured.word} ({measured.confidence:.0%} interval"
        f" {measured.speedup_low:.2f} to {measured.speedup_high:.2f})",
        style=_SPEED_STYLES[measured.word],
    )
    page.labelled("  Eager step", time_text(measured.eager_us))
    page.labelled("  As a graph", time_text(measured.graph_us))
    page.labelled(
        "  Method",
        f"wall clock, {measured.blocks} interleaved pairs of blocks of"
        f" {measured.calls_per_block} calls",
    )
    if measured.clock_note:
        page.labelled("  Clocks", measured.clock_note)


def _write_estimate(page: Page, estimate: Estimate) -> None:
    page.heading("Time of one step", basis_text(estimate))
    page.labelled("  Launch-bound", share_range(estimate.launch_bound_share))
    measured = ", measured" if estimate.basis == "measured" else ""
    page.labelled("  As a graph", time_range(estimate.graph_us), style="bold")
    page.labelled("  Eager", time_range(estimate.eager_us) + measured)
    page.labelled("  Speed-up", ratio_range(estimate.speedup), style="bold")
    if estimate.on_other_hosts:
        page.labelled("  Other host", other_hosts_text(estimate))
    page.labelled(
        "  Made of",
        f"{estimate.launches:,} launches; host {time_range(estimate.host_us)};"
        f" device busy {time_range(estimate.device_busy_us)}",
    )
    for note in estimate.notes:
        page.labelled("  Note", note)
    if page.look.show_all:
        for term in estimate.terms:
            text = f"{term.name}: {term.value} ({term.source})"
            page.labelled("  Figure", text)
