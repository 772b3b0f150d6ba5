"""Writes a check as a page, or as a line for each thing that is new or worse, as compilers do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.frame import SEVERITY_STYLES, code_rows, write_rows
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page, listed
from graphdoctor.values.captures import ON_FRESH_INPUTS, outcome_of_whole_step
from graphdoctor.values.check import Check, CheckedTarget, Occurrence, occurrences
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import effect_text

SHOWN_IN_FULL = 10
STALE_SHOWN = 5
INDENT = 4
_STATE_STYLES = {"safe": "green", "partly-safe": "yellow"}


def render(check: Check, look: Look) -> str:
    """The page. Text from the model can neither colour nor move anything in it."""
    page = Page(look)
    word, style = ("PASSED", "bold green") if wording.passed(check) else ("FAILED", "bold red")
    page.hanging(f"{word}  ", wording.headline(check), head_style=style)
    _write_new(page, check, occurrences(check, is_new=True))
    _write_problems(page, wording.problems(check))
    _write_stale(page, check)
    _write_targets(page, check)
    return page.render()


def _write_new(page: Page, check: Check, new: list[Occurrence]) -> None:
    if not new:
        return
    page.heading("New findings", "worst first")
    causes = wording.causes(new)
    in_full = len(causes) if page.look.show_all else SHOWN_IN_FULL
    for number, cause in enumerate(causes, start=1):
        if number <= in_full:
            page.blank()
        _write_places(page, number, cause)
        if number <= in_full:
            finding = cause[0].checked.finding
            page.blank()
            lead, style = " " * INDENT, SEVERITY_STYLES[cause[0].checked.severity]
            width = page.look.width - INDENT
            write_rows(page, code_rows(finding, "", width=width), style, lead=lead)
            page.blank()
            page.hanging(f"{' ' * INDENT}What  ", finding.message)
            for worse in filter(None, (wording.came_with(check, one) for one in cause)):
                page.hanging(f"{' ' * INDENT}With  ", worse)
            page.hanging(f"{' ' * INDENT}Fix   ", cause[0].checked.finding.fix)
            for line in cause[0].checked.finding.fix_code:
                page.line((f"{' ' * INDENT}      {line}", "cyan"))
    if causes[in_full:]:
        page.paragraph("--all shows the others in full too.", indent=INDENT, style="dim")
    page.blank()
    rule = new[0].checked.finding.rule
    page.paragraph(
        f"`graphdoctor explain {rule}` says more about a rule.", indent=INDENT, style="dim"
    )


def _write_places(page: Page, number: int, cause: Sequence[Occurrence]) -> None:
    """What is wrong, and a line for each place that has the same fix."""
    finding = cause[0].checked.finding
    page.wrapped(
        (f"{number:>2}  ", "bold"),
        (wording.title(finding), "bold"),
        (": ", ""),
        (effect_text(finding), SEVERITY_STYLES[cause[0].checked.severity]),
        indent=INDENT,
    )
    for one in cause:
        where = wording.place(one.checked.path, one.checked.line)
        reached = (f"  {_reached_by(one)}", "dim")
        page.wrapped((" " * INDENT, ""), (where, "bold cyan"), reached, indent=INDENT)
        _write_frames(page, one)


def _write_frames(page: Page, one: Occurrence) -> None:
    if not page.look.show_frames:
        return
    for frame in one.checked.finding.stack:
        page.line(
            (" " * INDENT + "called from ", "dim"),
            (wording.place(frame.file, frame.line), "cyan"),
            (f" in {frame.function}" if frame.function else "", "dim"),
        )


def _reached_by(one: Occurrence) -> str:
    note = wording.library_note(one.checked)
    reached = f"in {listed(one.targets, most=4)}"
    return f"{reached}; {note}" if note else reached


def _write_problems(page: Page, problems: list[wording.Problem]) -> None:
    if not problems:
        return
    page.heading("Targets that failed or got worse")
    before = None
    for problem in problems:
        if before != (problem.target, problem.title):
            page.hanging("  ", f"{problem.target}: {problem.title}", style="bold red")
        before = (problem.target, problem.title)
        page.hanging(" " * INDENT, problem.message)
        for line in wording.details(problem):
            page.line((" " * INDENT, ""), (line, "cyan"))


def _write_stale(page: Page, check: Check) -> None:
    if not check.stale:
        return
    page.heading("Baseline")
    page.paragraph(f"{wording.stale_text(check)}.", indent=2)
    shown = len(check.stale) if page.look.show_all else STALE_SHOWN
    for entry in check.stale[:shown]:
        page.cropped(
            (f"    {visible(entry.path)} {entry.rule} ", "cyan"), visible(entry.source), ""
        )
    if check.stale[shown:]:
        page.paragraph(f"and {len(check.stale) - shown} more", indent=INDENT, style="dim")


def _write_targets(page: Page, check: Check) -> None:
    page.heading("Targets", count_text(len(check.targets), "target"))
    for target in check.targets:
        state = (f"  {_state(target)}", _STATE_STYLES.get(_state(target), "red"))
        page.wrapped((f"  {visible(target.name)}", "bold"), state, indent=INDENT)
        if target.figures is not None:
            counted = f"{wording.figures_text(target.figures)}; {wording.findings_text(target)}"
            page.paragraph(counted, indent=INDENT, style="dim")
        if note := _inputs_note(target):
            page.paragraph(note, indent=INDENT, style="yellow")
        for better in target.improvements:
            page.paragraph(f"better: {better}", indent=INDENT, style="green")
    for note in check.notes:
        page.hanging("  Note  ", note)


def _state(target: CheckedTarget) -> str:
    if target.report is not None:
        return target.report.verdict
    return target.fault.kind if target.fault is not None else "unknown"


def _inputs_note(target: CheckedTarget) -> str:
    """What the proof had no other values of, as on the page of an analysis; "" where it had all."""
    whole = outcome_of_whole_step(target.report.captures) if target.report is not None else None
    verification = whole.verification if whole is not None else None
    if verification is None or verification.inputs == ON_FRESH_INPUTS:
        return ""
    return f"proved {verification.inputs}"


def concise(check: Check, look: Look) -> str:
    """path:line: severity: rule name: message [targets]; known findings are only counted."""
    return "".join(f"{line}\n" for line in _lines(check))


def _lines(check: Check) -> Iterator[str]:
    for one in occurrences(check, is_new=True):
        finding = one.checked.finding
        where = wording.place(one.checked.path, one.checked.line) or "no file"
        note = wording.library_note(one.checked)
        message = visible(finding.message) + (f" ({note})" if note else "")
        yield (
            f"{where}: {one.checked.severity}: {wording.title(finding)}:"
            f" {message} [{wording.names(one.targets)}]{_with(check, one)}"
        )
    for problem in wording.problems(check):
        where = wording.place(problem.path) or "no file"
        message = visible(problem.message)
        yield f"{where}: error: {problem.title}: {message} [{visible(problem.target)}]"
    if check.stale:
        yield f"{'error' if check.stale_fails else 'warning'}: {wording.stale_text(check)}"
    known = len(occurrences(check, is_new=False))
    word = "passed" if wording.passed(check) else "failed"
    yield f"{word}: {wording.headline(check)}" + (f" ({known} known)" if known else "")


def _with(check: Check, one: Occurrence) -> str:
    worse = wording.came_with(check, one)
    return f" (with it, {worse})" if worse else ""
