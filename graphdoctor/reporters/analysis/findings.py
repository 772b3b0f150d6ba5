"""Write findings as code frames: one for each cure, the worst in full, the rest in one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from graphdoctor.reporters.analysis.captures import difference_text
from graphdoctor.reporters.frame import (
    SEVERITY_STYLES,
    Frame,
    Note,
    code_rows,
    edited_lines,
    write_frame,
    write_note,
)
from graphdoctor.reporters.page import CODE_INDENT, Page
from graphdoctor.values.captures import outcome_of_whole_step
from graphdoctor.values.figures import cost_text, count_text, joined
from graphdoctor.values.finding import (
    CERTAINTY_WORDS,
    EFFECT_WORDS,
    SEVERITIES,
    Finding,
    by_cure,
    caller_of,
    severity_of,
)
from graphdoctor.values.locations import Columns, Location, place_text, places_text
from graphdoctor.values.report import Report

SHOWN_IN_FULL = 3
_PLACES = 12  # further lines that one fix is for
_EDITED = 4  # lines of code that a fix shows
_EFFECTS = (*EFFECT_WORDS,)
_CERTAINTIES = (*CERTAINTY_WORDS,)


class Entry(NamedTuple):
    """A finding on a page. `step` is the number of the program's step that has it, 0 on the page of one step."""

    step: int
    finding: Finding


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
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


def suppressed(findings: tuple[Finding, ...]) -> list[Finding]:
    """The others, worst first."""
    return [one for one in worst_first(findings) if one.suppressed is not None]


def errors_of(report: Report) -> list[Finding]:
    """Its findings that are errors and not suppressed."""
    return [one for one in active(report.findings) if severity_of(one) == "error"]


def entries_of(step: int, findings: tuple[Finding, ...]) -> list[Entry]:
    """The findings of one step that are not suppressed, worst first."""
    return [Entry(step, finding) for finding in worst_first(active(findings))]


def causes_of(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Entries with one cure together, in the order of the first of each.

    A line has one cure: steps that give it different advice share that of the first.
    """
    causes: list[list[Entry]] = []
    at: dict[tuple[str, Location, Columns | None], list[Entry]] = {}
    for group in by_cure(entries, lambda entry: entry.finding):
        places = [
            (one.finding.rule, one.finding.location, one.finding.columns)
            for one in group
            if one.step and one.finding.location is not None
        ]
        cause = next((at[place] for place in places if place in at), None)
        if cause is None:
            causes.append(cause := [])
        cause += group
        at |= {place: cause for place in places if place not in at}
    return causes


def write_findings(page: Page, causes: Sequence[list[Entry]]) -> None:
    """One frame for each cause: all with --all, else up to three of each step and then one line each."""
    shown = Counter[int]()
    for number, cause in enumerate(causes):
        step, finding = cause[0]
        is_note = severity_of(finding) == "note"
        is_full = page.look.show_all or (
            shown[step] < SHOWN_IN_FULL and (number == 0 or not is_note)
        )
        shown[step] += 1
        if is_full:
            _write_cause(page, cause)
        else:
            _write_in_a_line(page, cause)


def why_one_is_confirmed(findings: Iterable[Finding]) -> str:
    """Why a trial capture confirmed one error and no other, as a sentence; "" for errors of one kind."""
    errors = [one for one in findings if severity_of(one) == "error"]
    has_ended = any(
        one.effect == "capture-fails" and one.certainty == "confirmed" for one in errors
    )
    if not has_ended or all(one.certainty == "confirmed" for one in errors):
        return ""
    return "A trial capture ends at its first error, so only that error is confirmed."


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
    notes = [Note("note", difference_text(one, base)) for one in differences[:1]]
    if not notes and whole.verification.reason:
        notes = [Note("note", whole.verification.reason)]
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


def _write_cause(page: Page, cause: Sequence[Entry]) -> None:
    """The first finding with its code and the cure, and the further lines that have the same cure."""
    first, *others = unique_places(cause)
    headline, rest = headline_of(first)
    certainty = CERTAINTY_WORDS[first.certainty]
    notes = [Note("from", where) for where in _callers(page, first)]
    if rest:
        notes.append(Note("note", rest))
    if page.look.show_all:
        notes.append(Note("why", first.why))
        if context := context_text(first):
            notes.append(Note("in", context))
    notes += _fixes(cause)
    if others and page.look.show_all:
        notes += [Note("also", f"{_places([one], page)}: {headline_of(one)[0]}") for one in others]
    elif others:
        alike = [one for one in others if one.rule == first.rule]
        if alike:
            places = _places(alike, page, most=_PLACES)
            notes.append(Note("also", f"{count_text(len(alike), 'more line')}: {places}"))
        notes += [
            Note("also", f"{one.rule} ({_places([one], page)}): {headline_of(one)[0]}")
            for one in others
            if one.rule != first.rule
        ]
    times = f", {first.count:,} times per step" if first.count > 1 else ""
    frame = Frame(
        title=title_of(first),
        title_style=SEVERITY_STYLES[severity_of(first)],
        headline=f"{prefix_of(cause)}{headline}{f' ({certainty})' if certainty else ''}",
        location=first.location,
        column=first.columns.start if first.columns is not None else 0,
        rows=code_rows(first, f"{EFFECT_WORDS[first.effect]}{times}", width=page.look.width),
        notes=notes,
    )
    write_frame(page, frame)


def unique_places(cause: Iterable[Entry]) -> list[Finding]:
    """The findings, once for each line: several steps may run it."""
    return [
        *{
            (one.finding.location, one.finding.columns): one.finding for one in reversed([*cause])
        }.values()
    ][::-1]


def prefix_of(entries: Iterable[Entry]) -> str:
    """ "steps 1 and 2: ", or nothing on the page of one step."""
    numbers = [str(step) for step in dict.fromkeys(entry.step for entry in entries) if step]
    return f"{'step' if len(numbers) == 1 else 'steps'} {joined(numbers)}: " if numbers else ""


def _fixes(cause: Sequence[Entry]) -> Iterator[Note]:
    """The cure, with the lines as they are afterwards if it replaces their text.

    Steps that share a line may need another cure of it each: a page then says which step needs which.
    """
    cures = by_cure(cause, lambda entry: entry.finding)
    for those in cures:
        findings = unique_places(those)
        lines = [edited_lines(one) for one in findings]
        text, code = findings[0].fix, findings[0].fix_code
        if all(lines) and len(lines) <= _EDITED:
            rows = (f"{number}: {row}" for line in lines for number, row in line)
            code = (*dict.fromkeys(rows),)
            text = "Change the line to:" if len(code) == 1 else "Change the lines to:"
        whose = prefix_of(those) if len(cures) > 1 else ""
        yield Note("fix", f"{whose}{text}", code)


def _callers(page: Page, finding: Finding) -> list[str]:
    """The user's line that called into a library; with --frames every frame, outwards."""
    caller = caller_of(finding)
    frames = finding.stack if page.look.show_frames else (caller,) if caller is not None else ()
    return [
        place_text(frame, page.look.base) + (f" in {frame.function}" if frame.function else "")
        for frame in frames
    ]


def _places(findings: Iterable[Finding], page: Page, *, most: int | None = None) -> str:
    return places_text((one.location for one in findings), page.look.base, most=most)


def _write_in_a_line(page: Page, cause: Sequence[Entry]) -> None:
    """The headline and the lines, without code; of a note also what follows the headline.

    A note is about the step as a whole, so its reason is in the message, not in the code.
    """
    finding, *others = unique_places(cause)
    page.blank()
    headline, rest = headline_of(finding)
    page.wrapped(
        (title_of(finding), SEVERITY_STYLES[severity_of(finding)]),
        (f": {prefix_of(cause)}{headline}", "bold"),
        indent=len(CODE_INDENT),
    )
    most = None if page.look.show_all else _PLACES
    page.hanging(
        "  --> ", _places([finding, *others], page, most=most), style="cyan", head_style="blue"
    )
    if severity_of(finding) != "note":
        short = finding.fix.partition(". ")[0].removesuffix(".")
        text = finding.fix if finding.fix_code else short
        write_note(page, "  = ", Note("fix", text, finding.fix_code))
    if rest and severity_of(finding) == "note":
        page.hanging("  = note: ", rest, head_style="blue")


def counts_text(causes: Iterable[Sequence[Entry]], suppressed: int = 0) -> str:
    """ "2 errors in 3 places, 1 note, 1 suppressed": an error is what a page shows as one; "" without findings."""
    counts, places = Counter[str](), Counter[str]()
    for cause in causes:
        severity = severity_of(cause[0].finding)
        counts[severity] += 1
        places[severity] += len(unique_places(cause))
    parts = [
        count_text(counts[one], one)
        + (f" in {places[one]:,} places" if places[one] > counts[one] else "")
        for one in SEVERITIES
        if counts[one]
    ]
    if suppressed:
        parts.append(f"{suppressed:,} suppressed")
    return ", ".join(parts)


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
