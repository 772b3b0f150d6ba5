"""Write a program's steps for people: a table, what to change, findings, and host syncs between steps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from graphdoctor.reporters.analysis import terminal
from graphdoctor.reporters.analysis.findings import (
    Entry,
    causes_of,
    counts_text,
    entries_of,
    errors_of,
    headline_of,
    why_one_is_confirmed,
    write_findings,
    write_wrong_replay,
)
from graphdoctor.reporters.analysis.gain import fed_by_text
from graphdoctor.reporters.analysis.summary import (
    EMULATED,
    MEANINGS,
    VERDICTS,
    fixed_of,
    now_of,
    write_unknown,
)
from graphdoctor.reporters.frame import SEVERITY_STYLES, CodeRow, Frame, Note, write_frame
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import count_text, joined, ratio_text
from graphdoctor.values.finding import Finding, severity_of
from graphdoctor.values.locations import Location, line_of, path_text, place_text, places_text
from graphdoctor.values.program import (
    Handling,
    HostWait,
    Patch,
    ProgramReport,
    ProgramStep,
)
from graphdoctor.values.report import Report, Verdict
from graphdoctor.values.sweep import SMALLEST_GAIN

NOT_REACHED, NOT_DIAGNOSED = "NOT REACHED", "NOT DIAGNOSED"
WORST_FIRST: tuple[Verdict, ...] = ("unsafe", "unknown", "partly-safe", "safe")
_TO_MEND = (VERDICTS["unsafe"][0], VERDICTS["partly-safe"][0])
_MOST_WAITS = 6
_MOST_MOVED = 16  # lines
_LEAST_SHARE = 0.005  # of a row for DataLoaders: what is not 0%
_LITTLE_SLOWER = 1.05
_FIGURE_COLUMNS = 36  # of seen, host time, now and fixed
_FEWEST_STEP_COLUMNS = 20
_MOST_CHANGED = 40  # rows of a change
_MOST_REMOVED = 3  # of them that a long change takes away in one place
_FEWEST_OF_FUNCTION = 4
_LAST_CHANGED = 12  # of them those that are shown of its end, where a new function is called
_STYLES = {"safe": "green", "partly-safe": "yellow", "unsafe": "red", "unknown": "blue"}
_MEANINGS = {
    **{VERDICTS[verdict][0]: meaning for verdict, meaning in MEANINGS.items()},
    NOT_REACHED: "too little time or too few steps for a diagnosis",
    NOT_DIAGNOSED: "the step cannot be diagnosed as it is",
}
_READ = "The change reads the value after the captured part."
_HOW_CURED = {
    "GD101": _READ,
    "GD102": _READ,
    "GD103": _READ,
    "GD104": "The change copies the batch before the graph starts.",
    "GD105": "The change builds the tensor before the graph starts.",
    "GD108": _READ,
    "GD111": "The captured step keeps the step count on the GPU.",
    "GD117": "The captured step uses none of the earlier nodes.",
    "GD201": "The change keeps this branch in your loop, between the captured functions.",
    "GD205": "The graph adds to the gradients that it finds, as the step does.",
    "GD207": "The change draws before the graph starts.",
}
_OTHER_CODE: dict[Handling, str] = {
    "replaced code": "The change replaces the code there.",
    "no argument checks": "The change turns off the validation of distributions' arguments, which reads it, for the"
    " whole program.",
}
_HUNK = re.compile(r"@@ -(\d+)")


def render(report: ProgramReport, look: Look, *, diff_file: str = "") -> str:
    """The page. Text from the program can neither color nor move anything in it.

    `diff_file` is the file that holds the patch, "" if none was written.
    """
    page = Page(look)
    page.paragraph(what_happened(report), style="bold")
    _write_table(page, report)
    notes = notes_of(report)
    if notes:
        page.blank()
    for note in notes:
        page.wrapped(("note", "bold cyan"), (f": {note}", ""), indent=4)
    _write_changes(page, report, diff_file)
    to_fix, cured = _causes(report)
    _write_cured(page, cured)
    _write_unknown(page, report.steps)
    reports = {n: step.report for n, step in _numbered(report.steps) if step.report is not None}
    write_findings(page, to_fix)
    for number, found in reports.items():
        write_wrong_replay(page, found, prefix=f"step {number}: ")
    _write_between(page, report)
    _write_end(page, report, to_fix, [*cured.values()], diff_file)
    text = page.render()
    if look.show_all:
        for number, step in enumerate(report.steps, start=1):
            text += _step_page(step, number, look)
    return text


def what_happened(report: ProgramReport) -> str:
    """How many steps there are by verdict, and how the program ended, in sentences."""
    verdicts = [verdict_of(step) for step in report.steps]
    counts = ", ".join(
        f"{verdicts.count(one)} {one}"
        for one in (*(VERDICTS[one][0] for one in WORST_FIRST), NOT_DIAGNOSED, NOT_REACHED)
        if one in verdicts
    )
    found = (
        f"{count_text(len(report.steps), 'step')}: {counts}." if counts else "No step was found."
    )
    how = {
        "finished": f"The program ran to its end (exit code {report.exit_code}).",
        "ended by graphdoctor": "graphdoctor then stopped the program; --to-the-end lets the program run on.",
        "raised": "The program failed; this is what ran before.",
        "interrupted": "The program was interrupted; this is what ran before.",
    }[report.ending]
    return f"{found} {how}"


def verdict_of(step: ProgramStep) -> str:
    """The verdict, or that the step has none: nothing could be said, or nothing was tried."""
    if step.report is not None:
        return VERDICTS[step.report.verdict][0]
    return NOT_DIAGNOSED if step.is_reached else NOT_REACHED


def _write_table(page: Page, report: ProgramReport) -> None:
    """One row for each step, and one for DataLoaders."""
    if not report.steps:
        return
    names = [_name(step) for step in report.steps]
    verdicts = [verdict_of(step) for step in report.steps]
    first = max(len("verdict"), *map(len, verdicts))
    room = max(_FEWEST_STEP_COLUMNS, page.look.width - len("  #  ") - first - _FIGURE_COLUMNS)
    width = min(room, max(map(len, ("step", *names))))
    page.blank()
    now, fixed = [figure_now(step) for step in report.steps], [*map(figure_fixed, report.steps)]
    columns = f"  {'now':>7}  {'fixed':>5}" if any((*now, *fixed)) else ""
    head = f"  #  {'verdict':<{first}}  {'step':<{width}}   seen  host time{columns}"
    page.line((head, "dim"))
    for number, (step, name, verdict) in enumerate(
        zip(report.steps, names, verdicts, strict=True), start=1
    ):
        shown = name if len(name) <= width else _shortened_name(name, step.mode, width)
        style = _STYLES[step.report.verdict] if step.report is not None else "blue"
        page.line(
            (f" {number:>2}  ", "dim"),
            (f"{verdict:<{first}}  ", style),
            (f"{shown:<{width}}  {step.begun:>5,}  {step.share:>9.0%}", ""),
            (f"  {now[number - 1]:>7}  {fixed[number - 1]:>5}" if columns else "", "bold"),
        )
    share = report.loading_share
    if share >= _LEAST_SHARE:
        page.line((f"     {'DataLoader':<{first + 2 + width + 2 + 5}}  {share:>9.0%}", "dim"))
    whole = _of_program(report)
    if whole:
        page.line((f"     {'whole program':<{first + 2 + width + 18}}  {whole}", "bold"))
    meanings = [f"{word}: {meaning}" for word, meaning in _MEANINGS.items() if word in verdicts]
    if any(_left(step) or step.handled for step in report.steps):
        meanings.append("error: what prevents a CUDA graph, not a fault of the program")
    if columns:
        none = " (none: no graph is faster)" if "none" in now else ""
        meanings.append(f"now: speedup by graphs for the code as it is, shown by --all{none}")
        meanings.append("fixed: speedup if all fixes and changes below make each step one graph")
    meanings.append(
        "host time: share of this run's time, in which the CPU also did the GPU's work"
        if _is_emulated(report)
        else "host time: share of the wall time, the rest is outside these steps"
    )
    page.wrapped((f"     {'; '.join(meanings)}", "dim"), indent=5)
    reasons: dict[str, list[int]] = {}
    for number, step in _numbered(report.steps):
        if step.report is None:
            reasons.setdefault(step.reason or "no diagnosis", []).append(number)
    for reason, numbers in reasons.items():
        page.blank()
        page.wrapped(
            ("warning", SEVERITY_STYLES["warning"]),
            (f": {_steps_text(numbers)}: {reason}", ""),
            indent=4,
        )


def notes_of(report: ProgramReport) -> tuple[str, ...]:
    """On which ranks each step has its verdict, then what the report itself notes."""
    return (*_of_ranks(report.steps), *report.notes)


def figure_now(step: ProgramStep) -> str:
    """The speedup that the step can have as it is, "none", or "" if it is not known."""
    if step.report is None:
        return ""
    if step.report.verdict == "unknown":
        return "unknown"
    return "none" if now_of(step.report).is_none else _figure(_speedup_now(step))


def figure_fixed(step: ProgramStep) -> str:
    """The speedup after all fixes and changes, "none" for less than a gain, or "" if it is not known."""
    speedup = _speedup_fixed(step)
    return "none" if speedup is not None and speedup < SMALLEST_GAIN else _figure(speedup)


def _speedup_now(step: ProgramStep) -> float | None:
    if step.report is None or step.report.verdict == "unknown":
        return None
    return now_of(step.report).speedup


def _speedup_fixed(step: ProgramStep) -> float | None:
    if step.report is None or not errors_of(step.report):
        return _speedup_now(step)
    fixed = fixed_of(step.report)
    return fixed.mid if fixed is not None else None


def _figure(speedup: float | None) -> str:
    return ratio_text(speedup) if speedup is not None else ""


def _of_program(report: ProgramReport) -> str:
    """The speedups of the whole program, if its time is shared as it was here; "" without any.

    A CPU that did the GPU's work shares its time otherwise than a GPU.
    """
    if report.is_on_cpu or _is_emulated(report):
        return ""
    now, fixed = [*map(_speedup_now, report.steps)], [*map(_speedup_fixed, report.steps)]
    if not any((*now, *fixed)):
        return ""
    total = max(1.0, sum(step.share for step in report.steps))
    columns = []
    for speedups in (now, fixed):
        saved = sum(
            step.share / total * (1 - 1 / max(1.0, speedup or 1.0))
            for step, speedup in zip(report.steps, speedups, strict=True)
        )
        columns.append(ratio_text(1 / (1 - saved)))
    return f"{columns[0]:>7}  {columns[1]:>5}"


def _is_emulated(report: ProgramReport) -> bool:
    return report.machine is not None and report.machine.device == "emulated"


def _of_ranks(steps: Sequence[ProgramStep]) -> Iterator[str]:
    """On which ranks each step has its verdict; steps of which the same is true share a sentence."""
    numbers: dict[str, list[int]] = {}
    for number, step in enumerate(steps, start=1):
        ranks = step.report.ranks if step.report is not None else ()
        if not ranks:
            continue
        on: dict[Verdict, list[str]] = {}
        for one in ranks:
            on.setdefault(one.verdict, []).append(str(one.rank))
        if len(on) == 1:
            said = f"the same verdict on all {count_text(len(ranks), 'rank')}"
        else:
            said = ", ".join(
                f"{VERDICTS[one][0]} on {'rank' if len(on[one]) == 1 else 'ranks'} {joined(on[one])}"
                for one in WORST_FIRST
                if one in on
            )
        numbers.setdefault(said, []).append(number)
    for said, which in numbers.items():
        yield f"{'step' if len(which) == 1 else 'steps'} {joined([*map(str, which)])}: {said}"


def _name(step: ProgramStep) -> str:
    """ "training, train.py:26-29"; the whole name of a step that has one."""
    found = re.search(r"[^\s/\\]+\.py:\d+(?:-\d+)?(?: under .+)?", step.name)
    return visible(f"{step.mode}, {found.group() if found else step.name}")


def _shortened_name(name: str, mode: str, width: int) -> str:
    """ "training, ...loop.py:26-29": the mode and the end of the name."""
    head = f"{mode}, ..."
    room = max(0, width - len(head))
    return f"{head}{name[len(name) - room :]}"


def of_recorded(step: ProgramStep) -> str:
    """How many steps were recorded and at what cost; "" if that is not known."""
    if step.slowdown is None:
        return ""
    which = f"{count_text(step.recorded, 'step')} of {step.begun:,} {'was' if step.recorded == 1 else 'were'} recorded"
    if step.slowdown < _LITTLE_SLOWER:
        return f"{which}, at the usual step time"
    return f"{which}, at {step.slowdown:.1f}x the usual step time"


def of_wait(step: ProgramStep, wait: HostWait, base: str) -> str:
    """Where the host waits between the steps, for what, and how often."""
    where = place_text(wait.location, base) if wait.location else "?"
    often = "once per step" if wait.count == 1.0 else f"{wait.count:.2g} times per step"
    return f"{where} {wait.operation}, {often} ({step.name})"


def waits_between(report: ProgramReport) -> list[tuple[ProgramStep, HostWait]]:
    """The host syncs from one step to the next that stay outside every graph, each with the step before it."""
    cured = {
        (at.file, at.line)
        for step in report.steps
        if step.report is not None
        for finding in step.report.findings
        if step.handling_of(finding) is not None and (at := finding.location) is not None
    }
    captured = [lines for step in report.steps for lines in step.captured]
    return [
        (step, wait)
        for step in report.steps
        for wait in step.between
        if (at := wait.location) is None
        or not ((at.file, at.line) in cured or any(lines.holds(at) for lines in captured))
    ]


def _write_between(page: Page, report: ProgramReport) -> None:
    """A place each, and with --all the operation."""
    waits = waits_between(report)
    if not waits:
        return
    page.blank()
    count = count_text(len(waits), "host sync")
    which = f"{count} between steps, outside every graph: nothing to fix"
    if page.look.show_all:
        page.paragraph(f"{which}")
        for step, wait in waits:
            page.hanging("  ", of_wait(step, wait, page.look.base))
        return
    places = places_text((wait.location for _, wait in waits), page.look.base, most=_MOST_WAITS)
    page.paragraph(f"{which} ({places})")


def _write_changes(page: Page, report: ProgramReport, diff_file: str) -> None:
    """What to change in the program: the clause of each step, then the diff as frames."""
    patch = report.patch
    is_left_out = patch is not None and patch.status == "left out"  # and says why
    reasons: dict[str, list[int]] = {}
    for number, step in _numbered(report.steps):
        is_wanted = not is_left_out and (verdict_of(step) in _TO_MEND or _gains_now(step))
        if step.no_change and (page.look.show_all or is_wanted):
            reasons.setdefault(step.no_change, []).append(number)
    for reason, numbers in reasons.items():
        page.blank()
        is_first = all(_left(report.steps[number - 1]) for number in numbers)
        then = "; fix the errors first" if is_first else ""
        page.hanging(f"no change ({_steps_text(numbers)}): ", f"{reason}{then}")
    if patch is None:
        return
    changes = [
        (number, step.change) for number, step in enumerate(report.steps, start=1) if step.change
    ]
    headlines = [f"step {number}: {change}" for number, change in changes]
    frames = [*_diff_frames(patch.diff, patch.folder)] if patch.diff else []
    if len(changes) == 1:
        title, headline = f"change (step {changes[0][0]})", changes[0][1]
    else:
        title, headline = "change", "; ".join(headlines) or "left out"
    refusing = report.steps if patch.status == "not tried" else ()
    before = {one for step in refusing for one in _refused(step, _left(step))}
    command = _command_of(report, page.look.base)
    notes = [*_patch_notes(patch, sorted(before), command)]
    if not frames:
        write_frame(page, Frame(title, "bold green", headline, notes=notes))
    for index, (location, rows) in enumerate(frames):
        is_last = index == len(frames) - 1
        if len(rows) > _MOST_CHANGED and not page.look.show_all:
            where = f" in {diff_file}" if diff_file else " (--all shows them)"
            rows = _with_short_functions([*_without_removed(rows)], where)
        if len(rows) > _MOST_CHANGED and not page.look.show_all:
            left_out = len(rows) - _MOST_CHANGED
            cut = CodeRow("", f"... {left_out} more lines{where}", "dim")
            rows = [*rows[: _MOST_CHANGED - _LAST_CHANGED], cut, *rows[-_LAST_CHANGED:]]
        write_frame(
            page,
            Frame(
                title=title,
                title_style="bold green",
                headline=headline if index == 0 else "the same, in another place",
                location=location,
                rows=rows,
                notes=notes if is_last else [],
            ),
        )


def _without_removed(rows: Sequence[CodeRow]) -> Iterator[CodeRow]:
    """The rows of a long change with the first and last line of each run of removed lines."""
    for is_removed, run in groupby(rows, key=lambda row: row.gutter == "-"):
        shown = [*run]
        if is_removed and len(shown) > _MOST_REMOVED:
            count = len(shown) - 2
            shown = [shown[0], CodeRow("", f"... {count} more lines removed", "dim"), shown[-1]]
        yield from shown


def _with_short_functions(rows: list[CodeRow], where: str) -> list[CodeRow]:
    """The rows of a long change with the beginning and end of each long new function: each keeps its name."""
    blocks: list[list[CodeRow]] = []
    for row in rows:
        before = blocks[-1][-1] if blocks else None
        is_added = row.gutter == "+"
        begins = is_added and row.text.lstrip().startswith(("@", "def "))
        follows = before is not None and before.text.lstrip().startswith("@")
        if before is None or is_added != (before.gutter == "+") or (begins and not follows):
            blocks.append([])
        blocks[-1].append(row)
    most = max(map(len, blocks))
    shown = rows
    while len(shown) > _MOST_CHANGED and most > _FEWEST_OF_FUNCTION:
        most -= 1
        shown = [row for block in blocks for row in _shortened(block, most, where)]
    return shown


def _shortened(block: list[CodeRow], most: int, where: str) -> list[CodeRow]:
    """Of a run of added rows at most this many: the first ones, how many follow, and the last one."""
    is_function = block[0].gutter == "+" and block[0].text.lstrip().startswith(("@", "def "))
    code = len(block) - next((n for n, row in enumerate(reversed(block)) if row.text.strip()), 0)
    if not is_function or code <= most:
        return block
    cut = CodeRow("", f"... {code - most + 1} more lines of this function{where}", "dim")
    return [*block[: most - 2], cut, *block[code - 1 :]]


def _gains_now(step: ProgramStep) -> bool:
    """Whether the table gives a speedup, so that a reader looks for the change that brings it."""
    return figure_now(step) not in ("", "none", "unknown")


def _patch_notes(patch: Patch, before: Sequence[str], command: str) -> Iterator[Note]:
    """`before`: rules whose errors are in the lines of the change, and are fixed first."""
    if before:
        yield Note(
            "note",
            f"First fix {joined(before)} in your file, as shown below: `--diff` then writes this"
            " change with the fixed lines.",
        )
    if patch.status == "same results":
        yield Note("tried", patch.tried)
    elif patch.status == "left out":
        yield Note("note", f"no diff: {patch.tried}")
    if patch.shapes:
        yield Note("note", patch.shapes)
    added = [line[1:] for line in patch.diff.splitlines() if line.startswith("+")]
    if any("torch.rand" in line for line in added):
        yield Note("note", "Each replay draws new random numbers.")
    if any(line.strip() == "import graphdoctor" for line in added):
        yield Note(
            "note",
            "The changed program imports graphdoctor. For a change that needs torch only:",
            (f"graphdoctor run --plain --diff fix.diff {command}",),
        )


def of_patch(patch: Patch) -> str:
    """Whether the diff was tried, with which result."""
    said = {
        "left out": f"There is no diff. {patch.tried}",
        "same results": f"Tried: {patch.tried}",
        "not tried": "Not tried yet.",
    }[patch.status]
    return f"{said} {patch.shapes}".rstrip()


def _diff_frames(diff: str, folder: str) -> Iterator[tuple[Location, list[CodeRow]]]:
    """The changed lines of each file of a unified diff, each run of them below one line of context.

    Lines have their numbers before the change; "..." stands for lines that stay. The place is that of the
    last change.
    """
    file, last, shown = "", 0, 0
    rows: list[CodeRow] = []
    before: CodeRow | None = None
    number = 0
    for line in [*diff.splitlines(), "--- "]:
        if line.startswith("--- "):
            if rows:
                yield Location(f"{folder}/{file}" if folder else file, last), rows
            file, rows, last, shown, before = "", [], 0, 0, None
        elif line.startswith("+++ "):
            file = line[4:].split("\t")[0].removeprefix("b/")
        elif found := _HUNK.match(line):
            number, before = int(found.group(1)), None
        elif line.startswith(("+", "-")):
            if before is not None:
                if shown and int(before.gutter) > shown + 1:
                    rows.append(CodeRow("", "...", "dim"))
                rows.append(before)
            before = None
            last = number if line[0] == "-" else max(1, number - 1)
            style = "green" if line[0] == "+" else "red"
            rows.append(CodeRow(line[0], visible(line[1:].expandtabs()), style))
            number += line[0] == "-"
            shown = number - 1
        elif line.startswith(" "):
            before = CodeRow(str(number), visible(line[1:].expandtabs()))
            number += 1


def _numbered(steps: Sequence[ProgramStep]) -> Iterator[tuple[int, ProgramStep]]:
    return enumerate(steps, start=1)


def _causes(report: ProgramReport) -> tuple[list[list[Entry]], dict[tuple[str, str], list[Entry]]]:
    """Errors and warnings of steps that are not SAFE: those left for the reader, by cure, those the change handles.

    These are by rule and by the sentence that says what the change does.
    """
    to_fix: list[Entry] = []
    cured: dict[tuple[str, str], list[Entry]] = {}
    for number, step in _numbered(report.steps):
        if step.report is None or step.report.verdict == "safe":
            continue
        for entry in entries_of(number, step.report.findings):
            if severity_of(entry.finding) == "note":
                continue
            rule = entry.finding.rule
            by = step.handling_of(entry.finding)
            if by is None:
                to_fix.append(entry)
            else:
                how = _HOW_CURED.get(rule, "") if by == "capture" else _OTHER_CODE[by]
                cured.setdefault((rule, how), []).append(entry)
    return causes_of(to_fix), cured


def _write_cured(page: Page, causes: Mapping[tuple[str, str], Sequence[Entry]]) -> None:
    """What the change handles, a note for each rule and way: a reader has nothing to edit there."""
    if not causes:
        return
    notes = []
    for (rule, how), cause in causes.items():
        places = places_text((one.finding.location for one in cause), page.look.base)
        notes.append(Note(rule, f"{headline_of(cause[0].finding)[0]} ({places}). {how}".rstrip()))
    headline = (
        f"the change above handles {counts_text([*causes.values()])}: no further edit is needed"
    )
    write_frame(page, Frame("handled", "bold green", headline, notes=notes))


def _write_unknown(page: Page, steps: Sequence[ProgramStep]) -> None:
    """The causes of unknown verdicts, each once."""
    groups: dict[str, tuple[list[int], Report]] = {}
    for number, step in _numbered(steps):
        if step.report is not None and step.report.verdict == "unknown":
            groups.setdefault(step.report.reason, ([], step.report))[0].append(number)
    for numbers, report in groups.values():
        write_unknown(page, report, prefix=f"{_steps_text(numbers)}: ")


def _steps_text(numbers: Sequence[int]) -> str:
    """ "step 1", "steps 1, 2 and 4"."""
    return f"step{'s' if len(numbers) > 1 else ''} {joined([*map(str, numbers)])}"


def _write_end(
    page: Page,
    report: ProgramReport,
    to_fix: Sequence[Sequence[Entry]],
    cured: Sequence[Sequence[Entry]],
    diff_file: str,
) -> None:
    """Counts and the next commands. They come last, next to the prompt."""
    parts = [counts] if (counts := counts_text(to_fix)) else []
    if parts and report.patch is not None and report.patch.diff:
        parts[0] += " to fix"
    parts += [f"{counts} handled by the change"] if (counts := counts_text(cured)) else []
    estimates = [step.report.estimate for step in report.steps if step.report is not None]
    known = next((one for one in estimates if one is not None), None)
    on = f"{known.gpu}{fed_by_text(known)}" if known is not None else ""
    is_measured = any(step.report and step.report.measurement for step in report.steps)
    basis = f" Speedups are over eager, predicted for {on}." if on and not is_measured else ""
    if any(step.report and step.report.machine.device == "emulated" for step in report.steps):
        basis += f" {EMULATED}"
    page.blank()
    counts = f"{', '.join(parts)}." if parts else ""
    if counts or basis:
        page.paragraph(f"{counts}{basis}".strip())
    shown = [entry for cause in to_fix for entry in cause]
    by_step = groupby(sorted(shown, key=lambda entry: entry.step), key=lambda entry: entry.step)
    why = (why_one_is_confirmed(one.finding for one in entries) for _, entries in by_step)
    rest = [*dict.fromkeys(filter(None, why))]
    if to_fix:
        rule = to_fix[0][0].finding.rule
        rest.append(f"`graphdoctor explain {rule}` explains a rule.")
    if any(step.report for step in report.steps) and not page.look.show_all:
        rest.append("Use --all for each step's page.")
    if rest:
        page.paragraph(" ".join(rest))
    orders = [*orders_of(report, page.look.base, diff_file or "fix.diff")]
    if orders:
        page.blank()
        page.line(("Next", "bold"))
    for number, order in enumerate(orders, start=1):
        page.hanging(f"  {number}. " if len(orders) > 1 else "  ", order.text)
        for line in (*order.code, *filter(None, (order.command,))):
            page.line((f"     {line}", "cyan"))


class Order(NamedTuple):
    """One thing to do, with the command to type and the lines of code to write, if there are any."""

    text: str
    command: str = ""
    code: Sequence[str] = ()


def orders_of(report: ProgramReport, base: str, diff_file: str = "fix.diff") -> Iterator[Order]:
    """What to do, in an order that works.

    The lines of errors and of the diff are those of the program as it is. An error in a step that the change
    captures keeps the captured step eager, so it comes before the diff, which is then made from the new
    lines. All other errors come after it, when the program is run again and lists them where they then are.
    """
    command = _command_of(report, base)
    patch = report.patch
    left = {n: found for n, step in _numbered(report.steps) if (found := _left(step))}
    refused = {n: rules for n in left if (rules := _refused(report.steps[n - 1], left[n]))}
    others = [n for n in left if n not in refused]
    if any(step.stays_on_cpu for step in report.steps):
        yield Order(
            "Predict what CUDA graphs gain on a GPU, compared with the same GPU without graphs:",
            f"graphdoctor run --device cpu-as-is {command}",
        )
        yield _moved(report, base, command, "If that is worth it, move the program to the GPU")
    if patch is None or not patch.diff:
        if report.is_on_cpu and any(step.report for step in report.steps):
            yield _moved(report, base, command, "Move the program to the GPU")
        elif left:
            then = "tries the change again" if patch is not None else "can then propose a change"
            count = len({one.rule for found in left.values() for one in found})
            errors = "error" if count == 1 else "errors"
            text = f"Fix the {errors} of {_steps_text([*left])}, then run the same command again."
            yield Order(f"{text} It {then}.")
        return
    if patch.status == "same results":
        yield Order("Apply the change:", f"patch -p1 < {diff_file}")
        if left:
            yield Order(
                "Run graphdoctor again. It lists the errors that are left, with their new lines:",
                f"graphdoctor run {command}",
            )
        return
    if report.is_on_cpu:
        yield _moved(report, base, "", "Move the program to the GPU")
    for number, rules in refused.items():
        yield Order(
            f"Fix {joined(rules)} of step {number}: until then its captured step runs eagerly.",
        )
    yield Order(
        "Try the change. This runs the program's first steps with and without it, from the same random seeds,"
        " and writes fix.diff if the results match:",
        f"graphdoctor run --diff fix.diff {command}",
    )
    yield Order("Apply the change:", "patch -p1 < fix.diff")
    if others:
        yield Order(
            f"Run graphdoctor again. It lists the errors of {_steps_text(others)} with their new lines:",
            f"graphdoctor run {command}",
        )


def _command_of(report: ProgramReport, base: str) -> str:
    """The program as `graphdoctor run` takes it: options of the program come after `--`, as some are also ours."""
    count = 2 if report.command[:1] == ("-m",) else 1
    name, arguments = report.command[:count], report.command[count:]
    is_apart = any(word.startswith("-") for word in arguments)
    words = [*name, *(("--",) if is_apart else ()), *arguments]
    return " ".join(shlex.quote(path_text(word, base)) for word in words)


def _moved(report: ProgramReport, base: str, command: str, text: str) -> Order:
    """The lines to change, each with its number and code; "79+" is a new line after line 79."""
    again = ", then run the program again" if command else ""
    command = f"graphdoctor run {command}" if command else ""
    lines = report.on_gpu
    if not lines:
        return Order(f"{text}: the model and its inputs{again}:", command)
    files = {line.file for line in lines}
    names = {file: f"{path_text(file, base)}:" if len(files) > 1 else "" for file in files}
    code = [
        f"{names[one.file]}{one.line}{'+' if one.is_added else ''}: {one.code}"
        for one in lines[:_MOST_MOVED]
    ]
    if len(lines) > _MOST_MOVED:
        code.append(f"... {count_text(len(lines) - _MOST_MOVED, 'more line')} of the same kind")
    where = f" in {path_text(min(files), base)}" if len(files) == 1 else ""
    added = next((one.line for one in lines if one.is_added), None)
    plus = f" (`{added}+` is a new line after line {added})" if added is not None else ""
    return Order(f"{text}: change these lines{where}{plus}{again}:", command, code)


def _left(step: ProgramStep) -> list[Finding]:
    """Its errors that the change does not handle."""
    found = errors_of(step.report) if step.report is not None else ()
    return [one for one in found if step.handling_of(one) is None]


def _refused(step: ProgramStep, left: Iterable[Finding]) -> list[str]:
    """The rules of which the step's change cannot be captured."""
    return sorted({one.rule for one in left if step.change and one.effect == "capture-fails"})


def _step_page(step: ProgramStep, number: int, look: Look) -> str:
    if step.report is None:
        return ""
    page = Page(look)
    page.line((f"{HORIZONTAL * 3} Step {number}: {line_of(step.location)} ", "bold"))
    if recorded := of_recorded(step):
        page.paragraph(f"{recorded}.")
    return "\n" + page.render() + terminal.render(step.report, look)
