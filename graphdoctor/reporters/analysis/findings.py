"""Write findings as code frames: the worst in full, the rest in one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graphdoctor.reporters.analysis.captures import difference_text
from graphdoctor.reporters.frame import SEVERITY_STYLES, Frame, code_rows, write_frame
from graphdoctor.reporters.page import CODE_INDENT, Page, blocks
from graphdoctor.values.captures import outcome_of_whole_step
from graphdoctor.values.figures import cost_text, count_text, ratio_range
from graphdoctor.values.finding import EFFECT_WORDS, SEVERITIES, Finding, caller_of, severity_of
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import Report
from graphdoctor.values.speed import NextFix

SHOWN_IN_FULL = 3
_SHORT_FIX = 140  # characters: two lines
_PLACES = 6  # further lines that one fix is for
_READ = "it reads the value after the captured part"
_HOW_CURED = {
    "GD101": _READ,
    "GD102": _READ,
    "GD103": _READ,
    "GD104": "it copies the batch before the graph starts",
    "GD105": "it builds the tensor before the graph starts",
    "GD108": _READ,
    "GD111": "it keeps the step count on the GPU",
    "GD117": "its capture uses none of the earlier nodes",
    "GD205": "its graph adds to the gradients that it finds, as the step does",
    "GD207": "it draws before the graph starts",
}
_EFFECTS = (*EFFECT_WORDS,)
_CERTAINTIES = ("confirmed", "likely", "unknown")


def worst_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """By effect, then by certainty; otherwise in the order of the step."""
    return sorted(
        findings,
        key=lambda finding: (
            _EFFECTS.index(finding.effect),
            _CERTAINTIES.index(finding.certainty),
        ),
    )


def active(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings that are not suppressed."""
    return tuple(finding for finding in findings if finding.suppressed is None)


def causes_of(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Findings grouped by equal advice, worst group first."""
    causes: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in worst_first(findings):
        causes.setdefault((finding.rule, finding.why, finding.fix), []).append(finding)
    return list(causes.values())


def write_findings(
    page: Page,
    report: Report,
    *,
    prefix: str = "",
    with_notes: bool = True,
    cured: Sequence[str] = (),
) -> None:
    """One frame for each cause: all with --all, else up to three and then one line each.

    `prefix` begins each headline, such as "step 1: ". `cured` are rules whose findings the page's change handles.
    """
    causes = causes_of(active(report.findings))
    if not with_notes:
        causes = [cause for cause in causes if severity_of(cause[0]) != "note"]
    in_full = len(causes) if page.look.show_all else SHOWN_IN_FULL
    for number, cause in enumerate(causes):
        is_full = number < in_full and (
            page.look.show_all or number == 0 or severity_of(cause[0]) != "note"
        )
        if is_full:
            _write_cause(page, cause, report, prefix, is_cured=cause[0].rule in cured)
        else:
            is_cured = cause[0].rule in cured
            _write_in_a_line(page, cause, prefix, first=number == in_full, is_cured=is_cured)


def write_wrong_replay(page: Page, report: Report, *, prefix: str = "") -> None:
    """An error, if a replay of the whole step differs from eager and no finding says why."""
    whole = outcome_of_whole_step(report.captures)
    if (
        any(one.effect == "replay-is-wrong" for one in report.findings)
        or whole is None
        or whole.verification is None
        or whole.verification.status != "wrong"
    ):
        return
    differences = whole.verification.differences
    base = page.look.base
    notes = [("note", difference_text(one, base)) for one in differences[:1]]
    if not notes and whole.verification.reason:
        notes = [("note", whole.verification.reason)]
    frame = Frame(
        title="error",
        title_style=SEVERITY_STYLES["error"],
        headline=f"{prefix}a replay of the whole step differs from eager",
        location=differences[0].location if differences else None,
        notes=notes,
    )
    write_frame(page, frame)


def title_of(finding: Finding) -> str:
    """ "error[GD101]"."""
    return f"{severity_of(finding)}[{finding.rule}]"


def headline_of(finding: Finding) -> tuple[str, str]:
    """The first sentence of the message without its full stop, and the others."""
    first, stop, rest = finding.message.partition(". ")
    return (first, rest) if stop else (finding.message.removesuffix("."), "")


def _write_cause(
    page: Page, cause: list[Finding], report: Report, prefix: str, *, is_cured: bool
) -> None:
    first, *others = cause
    headline, rest = headline_of(first)
    shown = f" ({confirmed_text(report)})" if first.certainty == "confirmed" else ""
    notes: list[tuple[str, str]] = []
    notes += [("from", where) for where in _callers(page, first)]
    if rest:
        notes.append(("note", rest))
    if page.look.show_all:
        notes.append(("why", first.why))
        if context := context_text(first):
            notes.append(("in", context))
    if page.look.show_all:
        notes.append(("fix", first.fix))
    else:
        notes.append(("fix", f"{_cured(first)}." if is_cured else short_fix(first)))
    next_fix = report.recommendation.next_fix if report.recommendation is not None else None
    if not is_cured:  # the change has its own figure
        then = [speedup for one in cause if (speedup := speedup_after(one, next_fix))]
        notes += [("then", speedup) for speedup in then[:1]]
    if others:
        notes.append(("also", _places(page, others)))
    times = f", {first.count:,} times per step" if first.count > 1 else ""
    label = f"{EFFECT_WORDS[first.effect]}{times}"
    rows = code_rows(first, label, width=page.look.width)
    frame = Frame(
        title=title_of(first),
        title_style=SEVERITY_STYLES[severity_of(first)],
        headline=f"{prefix}{headline}{shown}",
        location=first.location,
        column=first.columns.start if first.columns is not None else 0,
        rows=rows,
        notes=notes,
    )
    write_frame(page, frame)
    if page.look.show_all:
        for finding in others:
            headline, _ = headline_of(finding)
            write_frame(
                page,
                Frame(
                    title=title_of(finding),
                    title_style=SEVERITY_STYLES[severity_of(finding)],
                    headline=f"{prefix}{headline}",
                    location=finding.location,
                    column=finding.columns.start if finding.columns is not None else 0,
                    rows=code_rows(finding, EFFECT_WORDS[finding.effect], width=page.look.width),
                    notes=[
                        *(("from", where) for where in _callers(page, finding)),
                        ("fix", "the same as above"),
                    ],
                ),
            )


def short_fix(finding: Finding) -> str:
    """The first paragraph of the fix, with the code that it introduces."""
    first, *rest = [*blocks(finding.fix)] or [""]
    text = " ".join(first.split())
    if text.endswith(":") and rest and rest[0].startswith(CODE_INDENT):
        return f"{text}\n\n{rest[0]}"
    return first


def speedup_after(finding: Finding, next_fix: NextFix | None) -> str:
    """The predicted speedup after the fix of this finding; "" if it is not the one to fix next."""
    if next_fix is None or (finding.rule, finding.location) != (next_fix.rule, next_fix.location):
        return ""
    share = next_fix.captured_share
    scope = "whole step as one graph" if share == 1.0 else f"{share:.0%} of launches in graphs"
    also = f", with {' and '.join(next_fix.others)} fixed too" if next_fix.others else ""
    return f"speedup {ratio_range(next_fix.speedup)} predicted, {scope}{also}"


def _callers(page: Page, finding: Finding) -> list[str]:
    """The user's line that called into a library; with --frames every frame, outwards."""
    caller = caller_of(finding)
    frames = finding.stack if page.look.show_frames else (caller,) if caller is not None else ()
    return [
        place_text(frame, page.look.base) + (f" in {frame.function}" if frame.function else "")
        for frame in frames
    ]


def _places(page: Page, findings: list[Finding]) -> str:
    """Further places of the same fix."""
    places = [
        place_text(one.location, page.look.base) if one.location else "no line known"
        for one in findings
    ]
    unique = [*dict.fromkeys(places)]
    most = len(unique) if page.look.show_all else _PLACES
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more


def _cured(finding: Finding) -> str:
    how = _HOW_CURED.get(finding.rule, "it needs no further edit")
    return f"Apply the change above, which handles this: {how}"


def _write_in_a_line(
    page: Page, cause: list[Finding], prefix: str, *, first: bool, is_cured: bool
) -> None:
    """The headline and the place, without code; of a note also what follows the headline.

    A note is about the step as a whole, so its reason is in the message, not in the code.
    """
    finding = cause[0]
    page.blank() if first or severity_of(finding) == "note" else None
    headline, rest = headline_of(finding)
    page.wrapped(
        (title_of(finding), SEVERITY_STYLES[severity_of(finding)]),
        (f": {prefix}{headline}", "bold"),
        indent=len(CODE_INDENT),
    )
    where = _places(page, cause)
    page.hanging("  --> ", where, style="cyan", head_style="blue")
    fix = _cured(finding) if is_cured else short_fix(finding)
    fix = " ".join(fix.split()).partition(". ")[0].rstrip(".")
    if severity_of(finding) != "note" and len(fix) <= _SHORT_FIX:
        page.hanging("  = fix:  ", fix, head_style="blue")
    if rest and severity_of(finding) == "note":
        page.hanging("  = note: ", rest, head_style="blue")


def counts_text(*pages: tuple[Finding, ...]) -> str:
    """ "2 errors in 3 places, 1 note, 1 suppressed": an error is what a page shows as one; "" without findings."""
    causes, places = Counter[str](), Counter[str]()
    for cause in (cause for findings in pages for cause in causes_of(active(findings))):
        causes[severity_of(cause[0])] += 1
        places[severity_of(cause[0])] += len(cause)
    parts = [
        count_text(causes[one], one)
        + (f" in {places[one]:,} places" if places[one] > causes[one] else "")
        for one in SEVERITIES
        if causes[one]
    ]
    suppressed = sum(map(len, pages)) - places.total()
    if suppressed:
        parts.append(f"{suppressed:,} suppressed")
    return ", ".join(parts)


def confirmed_text(report: Report) -> str:
    """Who showed the effect of a confirmed finding: the emulated GPU is no GPU."""
    is_emulated = report.machine.device == "emulated"
    return "confirmed in emulation" if is_emulated else "confirmed on this GPU"


def context_text(finding: Finding) -> str:
    """Its function, module and phase, how often it runs, and its cost."""
    parts = []
    if finding.location is not None and finding.location.function:
        parts.append(finding.location.function)
    if finding.module:
        parts.append(f"module {finding.module}")
    if finding.phase != "forward":
        parts.append(finding.phase)
    if finding.count > 1:
        parts.append(f"{finding.count:,} times per step")
    if finding.cost_us is not None:
        parts.append(f"costs {cost_text(finding.cost_us, finding.cost_source)}")
    return ", ".join(parts)
