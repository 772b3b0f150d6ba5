"""A program's steps -> a page for people: which there are and how they fare, then each step's own page."""

from __future__ import annotations

from graphdoctor.reporters.analysis import terminal
from graphdoctor.reporters.analysis.summary import VERDICTS
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import HORIZONTAL, Page
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import line_of, path_text, place_text
from graphdoctor.values.program import HostWait, Patch, ProgramReport, ProgramStep

_MOST_WAITS = 6
_MOST_DIFF = 40
_LITTLE_SLOWER = 1.05
_STYLES = {"safe": "green", "partly-safe": "yellow", "unsafe": "red", "unknown": "blue"}


def render(report: ProgramReport, look: Look) -> str:
    """The page. Text from the program can neither colour nor move anything in it."""
    page = Page(look)
    page.line((HORIZONTAL * look.width, "dim"))
    page.hanging(
        "graphdoctor run  ", path_text(" ".join(report.command), look.base), head_style="bold"
    )
    page.paragraph(what_happened(report))
    _write_overview(page, report)
    text = page.render()
    for number, step in enumerate(report.steps, start=1):
        text += _step_page(step, number, look)
    return text


def what_happened(report: ProgramReport) -> str:
    """How the program ended, and what was seen of it, in sentences."""
    found = f"{count_text(len(report.steps), 'kind')} of step" if report.steps else "no step"
    total_s = report.wall_s + report.diagnosis_s
    took = f"The diagnosis took {report.diagnosis_s:.1f} s of {total_s:.1f} s."
    how = {
        "finished": f"The program ran to its end, with exit code {report.exit_code}.",
        "ended by graphdoctor": "The program was ended after the diagnosis; --to-the-end lets it run on.",
        "raised": "The program failed; this is what was seen until then.",
        "interrupted": "The program was interrupted; this is what was seen until then.",
    }[report.ending]
    return f"{how} Seen: {found}. {took}"


def _write_overview(page: Page, report: ProgramReport) -> None:
    if report.steps:
        page.heading("Steps", f"share of the host's time{_on_cpu(report)}")
    for number, step in enumerate(report.steps, start=1):
        verdict = VERDICTS[step.report.verdict][0] if step.report is not None else "NOT DIAGNOSED"
        style = _STYLES[step.report.verdict] if step.report is not None else "blue"
        page.line(
            (f"  {number}  {step.share:>4.0%}  ", "dim"),
            (f"{verdict:<14}", style),
            (f"{step.name}, {step.mode}, {count_text(step.begun, 'time')}", ""),
        )
        if step.reason:
            page.hanging(" " * 11, step.reason, style="yellow")
        if recorded := of_recorded(step):
            page.hanging(" " * 11, recorded, style="dim")
    if report.loading_s > 0.0 and report.wall_s > 0.0:
        page.line(
            (f"     {report.loading_s / report.wall_s:>4.0%}  ", "dim"), ("DataLoader", "dim")
        )
    _write_between(page, report)
    _write_changes(page, report)
    for note in report.notes:
        page.labelled("  Note", note, style="yellow")


def of_recorded(step: ProgramStep) -> str:
    """How many steps were recorded and at what cost; "" where that is not known."""
    if step.slowdown is None:
        return ""
    which = (
        f"{count_text(step.recorded, 'step')} {'was' if step.recorded == 1 else 'were'} recorded"
    )
    if step.slowdown < _LITTLE_SLOWER:
        return f"{which}, no slower than the others"
    return f"{which}, {step.slowdown:.1f} times as long as the others"


def of_wait(step: ProgramStep, wait: HostWait, base: str) -> str:
    """Where the host waits between the steps, for what, and how often."""
    where = place_text(wait.location, base) if wait.location else "?"
    often = "once a step" if wait.count == 1.0 else f"{wait.count:.2g} times a step"
    return f"{where} {wait.operation}, {often} ({step.name})"


def _write_between(page: Page, report: ProgramReport) -> None:
    """Where the host waits for the device from one step to the next: no graph takes these waits away."""
    waits = [(step, wait) for step in report.steps for wait in step.between]
    if not waits:
        return
    page.heading("Between the steps", "where the host waits for the GPU")
    for step, wait in waits[: None if page.look.show_all else _MOST_WAITS]:
        page.hanging("  ", of_wait(step, wait, page.look.base))
    if len(waits) > _MOST_WAITS and not page.look.show_all:
        page.line((f"  ... and {len(waits) - _MOST_WAITS} more; --all shows them", "dim"))


def _write_changes(page: Page, report: ProgramReport) -> None:
    """What to change in the program, as a diff in its own names."""
    patch = report.patch
    if patch is None and not any(step.no_change for step in report.steps):
        return
    page.heading("What to change", patch.status if patch is not None else "nothing")
    for number, step in enumerate(report.steps, start=1):
        if said := step.change or step.no_change:
            why = said if step.change else f"no change: {said.rstrip('.')}"
            page.hanging(f"  {number}  ", f"{why}.", style="" if step.change else "dim")
    if patch is None:
        return
    if patch.diff:
        page.blank()
        lines = patch.diff.splitlines()
        most = len(lines) if page.look.show_all else _MOST_DIFF
        page.code("\n".join(lines[:most]), indent=2)
        if len(lines) > most:
            page.line((f"  ... and {len(lines) - most} more lines; --all shows them", "dim"))
        page.blank()
    page.hanging("  ", of_patch(patch))


def of_patch(patch: Patch) -> str:
    """Whether the diff was tried, and what came of it."""
    if patch.status == "left out":
        return f"There is no diff. {patch.tried}"
    if patch.status == "same results":
        return f"Tried: {patch.tried} Apply it with `patch -p1` in {patch.folder}."
    return (
        "Not tried yet: `--diff FILE` runs the program again, as it is and changed, and writes the diff"
        " if the results are the same."
    )


def _on_cpu(report: ProgramReport) -> str:
    machine = report.machine
    return ", on the CPU" if machine is None or machine.device == "emulated" else ""


def _step_page(step: ProgramStep, number: int, look: Look) -> str:
    if step.report is None:
        return ""
    page = Page(look)
    page.line((f"{HORIZONTAL * 3} Step {number}: {line_of(step.location)} ", "bold"))
    return "\n" + page.render() + terminal.render(step.report, look)
