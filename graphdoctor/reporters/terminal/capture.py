"""Regions and captures -> page: what can be captured, and whether its replay is right."""

from __future__ import annotations

from graphdoctor.model import CaptureOutcome, Difference, Location, Region, Report, Verification
from graphdoctor.reporters.figures import count_text, place_text, time_range
from graphdoctor.reporters.page import LABEL_COLUMNS, Page, listed

REGIONS_IN_FULL = 6
MODULES_SHOWN = 4
INDENT = 4


def write_capture(page: Page, report: Report) -> None:
    """The section; nothing if nothing was cut and nothing captured."""
    if not (report.regions or report.captures or report.safe_modules):
        return
    page.heading("What can be captured")
    for outcome in report.captures:
        _write_outcome(page, outcome)
    _write_regions(page, report.regions)
    if report.safe_modules:
        page.blank()
        most = len(report.safe_modules) if page.look.show_all else 12
        page.labelled("Safe modules", listed(report.safe_modules, most=most), indent=2)


def _write_regions(page: Page, regions: tuple[Region, ...]) -> None:
    """Those that pay in full, up to a number; the others in a line each."""
    paying = [region for region in regions if region.worthwhile]
    in_full = paying if page.look.show_all else paying[:REGIONS_IN_FULL]
    for region in in_full:
        page.blank()
        _write_region(page, region)
    others = [region for region in regions if region not in in_full]
    if others:
        page.blank()
    for region in others:
        size = count_text(region.operators, "operator")
        text = f"region {region.name}, {size}: {region.reason}"
        page.labelled("pays" if region.worthwhile else "does not pay", text, indent=2)


def _write_region(page: Page, region: Region) -> None:
    page.line(
        (f"  Region {region.name}", "bold green"),
        (f"  {', '.join(region.phases)}: ", ""),
        (count_text(region.operators, "operator"), ""),
        (f", {count_text(region.launches, 'launch').replace('launchs', 'launches')}", ""),
    )
    span = _span(region.first, region.last, page.look.base)
    if span:
        page.line((" " * INDENT, ""), (span, "cyan"))
    if region.modules:
        most = len(region.modules) if page.look.show_all else MODULES_SHOWN
        page.labelled("Modules", listed(region.modules, most=most), indent=INDENT)
    saving = f"{time_range(region.saving_us)} a step; " if region.saving_us is not None else ""
    page.labelled("Saves", saving + region.reason, indent=INDENT)
    if region.blocked_by:
        page.labelled("Bounded by", ", ".join(region.blocked_by), indent=INDENT)


def _span(first: Location | None, last: Location | None, base: str) -> str:
    if first is None or last is None:
        known = first or last
        return place_text(known, base) if known else ""
    start = place_text(first, base)
    if first.file != last.file:
        return f"{start} to {place_text(last, base)}"
    low, high = sorted((first.line, last.line))
    return place_text(Location(first.file, low), base) + (f"-{high}" if high > low else "")


def _write_outcome(page: Page, outcome: CaptureOutcome) -> None:
    scope = outcome.scope[:1].upper() + outcome.scope[1:]
    if outcome.status == "refused":
        place = f" ({place_text(outcome.location, page.look.base)})" if outcome.location else ""
        page.labelled(scope, f"refused: {outcome.reason}{place}", indent=2)
        return
    check = outcome.verification
    if check is None:
        page.labelled(scope, "captured, its replay not compared with eager", indent=2)
        return
    style = {"verified": "green", "wrong": "bold magenta", "not-verified": "yellow"}[check.status]
    page.labelled(scope, f"captured; {_verification(check)}", indent=2, style=style)
    for difference in check.differences:
        page.paragraph(_difference(difference, page.look.base), indent=2 + LABEL_COLUMNS)


def _verification(check: Verification) -> str:
    if check.status == "not-verified":
        return f"not verified: {check.reason}"
    what = f"{count_text(check.replays, 'replay')} of {count_text(check.tensors, 'tensor')}"
    if check.status == "verified":
        return f"verified: {what} on fresh inputs, equal to eager ({check.method})"
    reason = f": {check.reason}" if check.reason else ""
    return f"WRONG: {what}, compared with eager ({check.method}){reason}"


def _difference(difference: Difference, base: str) -> str:
    writer = f", written by {difference.operator}" if difference.operator else ""
    place = f" at {place_text(difference.location, base)}" if difference.location else ""
    detail = f"; {difference.detail}" if difference.detail else ""
    return (
        f"{difference.tensor} first differs in replay {difference.replay}, by up to"
        f" {difference.max_abs:.2g} ({difference.max_rel:.2g} of its value){writer}{place}{detail}"
    )
