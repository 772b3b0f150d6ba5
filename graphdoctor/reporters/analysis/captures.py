"""Shows what can be captured, region by region, and whether its replay is right."""

from __future__ import annotations

from graphdoctor.reporters.page import LABEL_COLUMNS, Page
from graphdoctor.values.captures import CaptureOutcome, Difference, Region, Verification
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import count_text, time_range
from graphdoctor.values.locations import Location, place_text
from graphdoctor.values.report import Report

_STATUS_STYLES = {"verified": "green", "wrong": "bold magenta", "not-verified": "yellow"}


def write_capture(page: Page, report: Report) -> None:
    """The section; nothing if nothing was cut and nothing captured."""
    if not (report.regions or report.captures or report.safe_modules):
        return
    page.heading("What can be captured")
    regions = {region.name for region in report.regions}
    for outcome in report.captures:
        if outcome.region not in regions:
            scope = outcome.scope[:1].upper() + outcome.scope[1:]
            _write_outcome(page, f"  {scope}", outcome)
    _write_regions(page, report)
    if report.safe_modules:
        page.blank()
        page.labelled("  Safe modules", ", ".join(map(visible, report.safe_modules)))


def is_wrong(outcome: CaptureOutcome) -> bool:
    """Was captured, and its replay was shown to compute something else than eager."""
    return outcome.verification is not None and outcome.verification.status == "wrong"


def _write_regions(page: Page, report: Report) -> None:
    """Regions that pay off or replay wrongly in full, the others in one line each."""
    outcomes = {outcome.region: outcome for outcome in report.captures}
    notable: list[tuple[Region, CaptureOutcome | None]] = []
    others: list[Region] = []
    for region in report.regions:
        outcome = outcomes.get(region.name)
        if region.worthwhile or (outcome is not None and is_wrong(outcome)):
            notable.append((region, outcome))
        else:
            others.append(region)
    for region, outcome in notable:
        page.blank()
        _write_region(page, region, outcome)
    page.blank()
    for region in others:
        size = count_text(region.operators, "operator")
        page.labelled(f"  Region {region.name}", f"{size}: {region.reason}")


def _write_region(page: Page, region: Region, outcome: CaptureOutcome | None) -> None:
    launches = count_text(region.launches, "launch")
    page.wrapped(
        (f"{f'  Region {region.name}':<{LABEL_COLUMNS}}", "bold green"),
        (f"{count_text(region.operators, 'operator')}, {launches}", "bold"),
        (f" ({', '.join(region.phases)})", "dim"),
        indent=LABEL_COLUMNS,
    )
    span = span_text(region.first, region.last, page.look.base)
    if span:
        page.labelled("    Lines", span, style="cyan")
    if region.modules:
        page.labelled("    Modules", ", ".join(map(visible, region.modules)))
    if outcome is not None:
        _write_outcome(page, "    Capture", outcome)
    saving = f"{time_range(region.saving_us)} a step; " if region.saving_us is not None else ""
    page.labelled("    Saves", saving + region.reason)
    if region.blocked_by:
        page.labelled("    Bounded by", ", ".join(region.blocked_by))
    if region.needs:
        page.labelled("    Needs", needs_text(region))


def needs_text(region: Region) -> str:
    """The regions that have to run first, each with the rules that stand between."""
    return "; ".join(
        f"region {need.region}" + (f", through {', '.join(need.rules)}" if need.rules else "")
        for need in region.needs
    )


def span_text(first: Location | None, last: Location | None, base: str) -> str:
    """file:12-34, or both places where they lie in two files."""
    if first is None or last is None:
        known = first or last
        return place_text(known, base) if known else ""
    if first.file != last.file:
        return f"{place_text(first, base)} to {place_text(last, base)}"
    low, high = sorted((first.line, last.line))
    return place_text(Location(first.file, low), base) + (f"-{high}" if high > low else "")


def _write_outcome(page: Page, label: str, outcome: CaptureOutcome) -> None:
    check = outcome.verification
    text = outcome_text(outcome, page.look.base)
    if outcome.status == "refused":
        page.labelled(label, text, style="red")
    elif check is None:
        page.labelled(label, text)
    else:
        page.labelled(label, text, style=_STATUS_STYLES[check.status])
        for difference in check.differences:
            page.labelled("", difference_text(difference, page.look.base))


def outcome_text(outcome: CaptureOutcome, base: str) -> str:
    """Whether it was captured, and what its replay was worth."""
    if outcome.status == "refused":
        place = f" ({place_text(outcome.location, base)})" if outcome.location else ""
        return f"refused: {outcome.reason}{place}"
    if outcome.verification is None:
        return "captured, its replay was not compared with eager"
    return f"captured; {verification_text(outcome.verification)}"


def verification_text(check: Verification) -> str:
    if check.status == "not-verified":
        return f"not verified: {check.reason}"
    what = f"{count_text(check.replays, 'replay')} of {count_text(check.tensors, 'tensor')}"
    if check.status == "verified":
        return f"verified: {what} {check.inputs}, equal to eager ({check.method})"
    # The differences, which follow, say the reason more precisely.
    reason = f": {check.reason}" if check.reason and not check.differences else ""
    return f"WRONG: {what}, compared with eager ({check.method}){reason}"


def difference_text(difference: Difference, base: str) -> str:
    writer = f", written by {difference.operator}" if difference.operator else ""
    place = f" at {place_text(difference.location, base)}" if difference.location else ""
    detail = f"; {difference.detail}" if difference.detail else ""
    return (
        f"{difference.tensor} first differs in replay {difference.replay}, by up to"
        f" {difference.max_abs:.2g} (relative {difference.max_rel:.2g}){writer}{place}{detail}"
    )
