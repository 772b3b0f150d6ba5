"""Write a program's steps for people: a table, what to change, findings, and host syncs between steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from graphdoctor.reporters.analysis import terminal
from graphdoctor.reporters.analysis.findings import (
    active,
    counts_text,
    worst_first,
    write_findings,
    write_wrong_replay,
)
from graphdoctor.reporters.analysis.gain import fed_by_text
from graphdoctor.reporters.analysis.summary import VERDICTS, now_figure, write_unknown
from graphdoctor.reporters.frame import SEVERITY_STYLES, CodeRow, Frame, write_frame
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import count_text, joined
from graphdoctor.values.finding import severity_of
from graphdoctor.values.locations import Location, line_of, path_text, place_text
from graphdoctor.values.program import HostWait, Patch, ProgramReport, ProgramStep, to_gpu
from graphdoctor.values.report import Verdict

NOT_REACHED, NOT_DIAGNOSED = "NOT REACHED", "NOT DIAGNOSED"
_WORST_FIRST: tuple[Verdict, ...] = ("unsafe", "unknown", "partly-safe", "safe")
_TO_MEND = (VERDICTS["unsafe"][0], VERDICTS["partly-safe"][0])
_MOST_WAITS = 6
_LEAST_SHARE = 0.005  # of a row for DataLoaders: what is not 0%
_LITTLE_SLOWER = 1.05
_MOST_STEP_COLUMNS = 34
_MOST_CHANGED = 40  # rows of a change
_LAST_CHANGED = 12  # of them those that are shown of its end, where a new function is called
_STYLES = {"safe": "green", "partly-safe": "yellow", "unsafe": "red", "unknown": "blue"}
_MEANINGS = {
    VERDICTS["safe"][0]: "the whole step can run as one CUDA graph",
    VERDICTS["partly-safe"][0]: "parts of the step can run as CUDA graphs",
    VERDICTS["unsafe"][0]: "a capture fails, or its replay is wrong",
    VERDICTS["unknown"][0]: "no replay could be verified",
    NOT_REACHED: "too little time or too few steps for a diagnosis",
    NOT_DIAGNOSED: "the step cannot be diagnosed as it is",
}
_HUNK = re.compile(r"@@ -(\d+)")


def render(report: ProgramReport, look: Look, *, diff_file: str = "") -> str:
    """The page. Text from the program can neither color nor move anything in it.

    `diff_file` is the file that holds the patch, "" if none was written.
    """
    page = Page(look)
    page.paragraph(what_happened(report), style="bold")
    _write_table(page, report)
    for note in notes_of(report):
        page.wrapped(("note", "bold cyan"), (f": {note}", ""), indent=4)
    _write_changes(page, report, diff_file)
    groups = _groups(report.steps)
    for numbers, step in groups:
        _write_findings_of(page, numbers, step)
    _write_between(page, report)
    _write_end(page, report, groups, diff_file)
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
        for one in (*(VERDICTS[one][0] for one in _WORST_FIRST), NOT_DIAGNOSED, NOT_REACHED)
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
    width = min(_MOST_STEP_COLUMNS, max(map(len, ("step", *names))))
    first = max(len("verdict"), *map(len, verdicts))
    page.blank()
    head = f"  #  {'verdict':<{first}}  {'step':<{width}}   seen  host time  speedup now"
    page.line((head, "dim"))
    for number, (step, name, verdict) in enumerate(
        zip(report.steps, names, verdicts, strict=True), start=1
    ):
        shown = name if len(name) <= width else f"...{name[3 - width :]}"
        style = _STYLES[step.report.verdict] if step.report is not None else "blue"
        page.line(
            (f" {number:>2}  ", "dim"),
            (f"{verdict:<{first}}  ", style),
            (f"{shown:<{width}}  {step.begun:>5,}  {step.share:>9.0%}  ", ""),
            (figure_now(step), "bold"),
        )
    share = report.loading_s / report.wall_s if report.wall_s else 0.0
    if share >= _LEAST_SHARE:
        page.line((f"     {'DataLoader':<{first + 2 + width + 2 + 5}}  {share:>9.0%}", "dim"))
    meanings = [f"{word}: {meaning}" for word, meaning in _MEANINGS.items() if word in verdicts]
    if any(figure_now(step) for step in report.steps):
        meanings.append("speedup now: with the code as it is")
    meanings.append("host time: its share of the run")
    page.wrapped((f"     {'; '.join(meanings)}", "dim"), indent=5)
    for number, step in enumerate(report.steps, start=1):
        if step.report is None:
            page.blank()
            page.wrapped(
                ("warning", SEVERITY_STYLES["warning"]),
                (f": step {number}: {step.reason or 'no diagnosis'}", ""),
                indent=4,
            )


def notes_of(report: ProgramReport) -> tuple[str, ...]:
    """On which ranks each step has its verdict, then what the report itself notes."""
    return (*_of_ranks(report.steps), *report.notes)


def figure_now(step: ProgramStep) -> str:
    """The speedup that the step can have as it is; "" without a diagnosis, or if it proved nothing."""
    found = step.report
    return now_figure(found) if found is not None and found.verdict != "unknown" else ""


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
                for one in _WORST_FIRST
                if one in on
            )
        numbers.setdefault(said, []).append(number)
    for said, which in numbers.items():
        yield f"{'step' if len(which) == 1 else 'steps'} {joined([*map(str, which)])}: {said}"


def _name(step: ProgramStep) -> str:
    """ "training, train.py:26-29"; the whole name of a step that has one."""
    found = re.search(r"[^\s/\\]+\.py:\d+(?:-\d+)?(?: under .+)?", step.name)
    return visible(f"{step.mode}, {found.group() if found else step.name}")


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


def _write_between(page: Page, report: ProgramReport) -> None:
    """Host syncs from one step to the next: a place each, and with --all the operation."""
    waits = [(step, wait) for step in report.steps for wait in step.between]
    if not waits:
        return
    page.blank()
    count = count_text(len(waits), "host sync")
    which = f"{count} between steps, outside every graph"
    if page.look.show_all:
        page.paragraph(f"{which}:")
        for step, wait in waits:
            page.hanging("  ", of_wait(step, wait, page.look.base))
        return
    places = [*dict.fromkeys(_short_places(waits, page.look.base))]
    more = f" and {len(places) - _MOST_WAITS} more" if len(places) > _MOST_WAITS else ""
    page.paragraph(f"{which}: {', '.join(places[:_MOST_WAITS])}{more}")


def _short_places(waits: Sequence[tuple[ProgramStep, HostWait]], base: str) -> Iterator[str]:
    """plain_loop.py:30, then :32 of the same file."""
    before = ""
    for _, wait in waits:
        if wait.location is None:
            yield "no line known"
            continue
        same = wait.location.file == before
        yield f":{wait.location.line}" if same else place_text(wait.location, base)
        before = wait.location.file


def _write_changes(page: Page, report: ProgramReport, diff_file: str) -> None:
    """What to change in the program: the clause of each step, then the diff as frames."""
    patch = report.patch
    is_left_out = patch is not None and patch.status == "left out"  # and says why
    for number, step in enumerate(report.steps, start=1):
        is_wanted = verdict_of(step) in _TO_MEND and not is_left_out
        if step.no_change and (page.look.show_all or is_wanted):
            page.blank()
            page.hanging(f"no change (step {number}): ", step.no_change)
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
    notes = [*_patch_notes(patch), *_left_by_change(report.steps)]
    if not frames:
        write_frame(page, Frame(title, "bold green", headline, notes=notes))
    for index, (location, rows) in enumerate(frames):
        is_last = index == len(frames) - 1
        if len(rows) > _MOST_CHANGED and not page.look.show_all:
            left_out = len(rows) - _MOST_CHANGED
            where = f" in {diff_file}" if diff_file else ""
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


def _patch_notes(patch: Patch) -> Iterator[tuple[str, str]]:
    if patch.status == "same results":
        yield "tried", patch.tried
    elif patch.status == "left out":
        yield "note", f"no diff: {patch.tried}"
    if patch.shapes:
        yield "note", patch.shapes


def _left_by_change(steps: Sequence[ProgramStep]) -> Iterator[tuple[str, str]]:
    """The errors of changed steps that the change does not handle."""
    for number, step in enumerate(steps, start=1):
        if step.change and (left := sorted(_errors(step) - set(step.cured))):
            yield "note", f"the change leaves {joined(left)} of step {number} for you to fix"


def _errors(step: ProgramStep) -> set[str]:
    """The rules of its errors."""
    found = active(step.report.findings) if step.report is not None else ()
    return {one.rule for one in found if severity_of(one) == "error"}


def of_patch(patch: Patch) -> str:
    """Whether the diff was tried, with which result."""
    if patch.status == "left out":
        return f"There is no diff. {patch.tried}"
    if patch.status == "same results":
        said = f"Tried: {patch.tried} Apply the change with `patch -p1` in {patch.folder}."
    else:
        said = (
            "Not tried yet: `--diff FILE` reruns the program with and without the change, and writes the diff"
            " if the results match."
        )
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


def _groups(steps: Sequence[ProgramStep]) -> list[tuple[list[int], ProgramStep]]:
    """Steps that are not SAFE, with the numbers of all that have the same findings and reason."""
    groups: dict[object, tuple[list[int], ProgramStep]] = {}
    for number, step in enumerate(steps, start=1):
        report = step.report
        if report is None or report.verdict == "safe":
            continue
        found = tuple((one.rule, one.location, one.message) for one in active(report.findings))
        cause = report.reason if report.verdict == "unknown" else ""
        same = (report.verdict, found, cause, step.cured)
        numbers, _ = groups.setdefault(same, ([], step))
        numbers.append(number)
    return [*groups.values()]


def _write_findings_of(page: Page, numbers: Sequence[int], step: ProgramStep) -> None:
    """One frame for each error and warning."""
    report = step.report
    assert report is not None
    noun = "step" if len(numbers) == 1 else "steps"
    whose = f"{noun} {joined([*map(str, numbers)])}"
    prefix = f"{whose}: "
    if report.verdict == "unknown":
        write_unknown(page, report, prefix=prefix)
    write_findings(page, report, prefix=prefix, with_notes=False, cured=step.cured)
    write_wrong_replay(page, report, prefix=prefix)


def _write_end(
    page: Page,
    report: ProgramReport,
    groups: Sequence[tuple[list[int], ProgramStep]],
    diff_file: str,
) -> None:
    """Counts and the next command: beside the prompt."""
    found = [
        tuple(one for one in active(step.report.findings) if severity_of(one) != "note")
        for _, step in groups
        if step.report
    ]
    parts = [counts] if (counts := counts_text(*found)) else []
    changes = sum(bool(step.change) for step in report.steps) if report.patch else 0
    parts += [count_text(changes, "change")] if changes else []
    estimates = [step.report.estimate for step in report.steps if step.report is not None]
    known = next((one for one in estimates if one is not None), None)
    on = f"{known.gpu}{fed_by_text(known)}" if known is not None else ""
    is_measured = any(step.report and step.report.measurement for step in report.steps)
    basis = f" Speedups are over eager, predicted for {on}." if on and not is_measured else ""
    if any(step.report and step.report.machine.device == "emulated" for step in report.steps):
        basis += " graphdoctor emulated the GPU."
    page.blank()
    counts = f"{', '.join(parts)}." if parts else ""
    if counts or basis:
        page.paragraph(f"{counts}{basis}".strip())
    _write_mended_first(page, report)
    patch = report.patch
    following, rest = "", ""
    if any(step.report for step in report.steps) and not page.look.show_all:
        rest = "Use --all for each step's page."
    if patch is not None and patch.status == "same results" and diff_file:
        following = f"Apply the change: patch -p1 < {diff_file}. "
    elif patch is not None and patch.status == "not tried" and patch.diff:
        before = "Try"
        if report.is_on_cpu:
            move = to_gpu(module for step in report.steps for module in step.modules)
            before = f"{move[0].upper()}{move[1:]}, then try"
        command = path_text(" ".join(report.command), page.look.base)
        page.paragraph(f"{before} the change: graphdoctor run --diff fix.diff {command}")
    elif rules := [one.rule for findings in found for one in worst_first(findings)]:
        following = f"Explain a rule: graphdoctor explain {rules[0]}. "
    if following or rest:
        page.paragraph(f"{following}{rest}".rstrip())


def _write_mended_first(page: Page, report: ProgramReport) -> None:
    """Steps without a change whose errors a reader can fix: the lines are those of the unchanged program."""
    numbers = [
        str(number)
        for number, step in enumerate(report.steps, start=1)
        if not step.change and _errors(step)
    ]
    is_left_out = report.patch is not None and report.patch.status == "left out"
    if numbers and not is_left_out and not report.is_on_cpu:
        steps = f"step{'s' if len(numbers) > 1 else ''} {joined(numbers)}"
        page.paragraph(
            f"First fix the errors of {steps}, in the program as it is, and run the same command again: it can"
            " then propose a change there."
        )


def _step_page(step: ProgramStep, number: int, look: Look) -> str:
    if step.report is None:
        return ""
    page = Page(look)
    page.line((f"{HORIZONTAL * 3} Step {number}: {line_of(step.location)} ", "bold"))
    if recorded := of_recorded(step):
        page.paragraph(f"{recorded}.")
    return "\n" + page.render() + terminal.render(step.report, look)
