"""A program's steps -> one HTML file: which there are and what to change, and each step's own page inside."""

from __future__ import annotations

from graphdoctor.reporters.analysis import html
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.program_page import (
    figure_fixed,
    figure_now,
    notes_of,
    of_patch,
    of_recorded,
    of_wait,
    orders_of,
    verdict_of,
    what_happened,
)
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import parts
from graphdoctor.reporters.web.drawn_step import SCRIPTS
from graphdoctor.values.locations import path_text
from graphdoctor.values.program import ProgramReport

_WORST_FIRST = ("unsafe", "unknown", "partly-safe", "safe")


def render(report: ProgramReport, look: Look) -> str:
    """The page, which asks no network for anything. Nothing of a program's text is obeyed."""
    from markupsafe import escape

    verdicts = [step.report.verdict for step in report.steps if step.report is not None]
    worst = next((one for one in _WORST_FIRST if one in verdicts), "unknown")
    return document(
        "program.html",
        framed=SCRIPTS,
        report=report,
        command=path_text(" ".join(report.command), look.base),
        sentence=what_happened(report),
        css=worst,
        verdict_of=verdict_of,
        parts=parts,
        pages=[
            escape(html.render(step.report, look)) if step.report is not None else ""
            for step in report.steps
        ],
        notes=notes_of(report),
        now=[figure_now(step) for step in report.steps],
        fixed=[figure_fixed(step) for step in report.steps],
        changes=any(step.change or step.no_change for step in report.steps),
        recorded=[of_recorded(step) for step in report.steps],
        waits=[of_wait(step, wait, look.base) for step in report.steps for wait in step.between],
        patch=of_patch(report.patch) if report.patch is not None else "",
        orders=[*orders_of(report, look.base)],
        loading=report.loading_s / report.wall_s if report.wall_s else 0.0,
        on_cpu=report.machine is None or report.machine.device == "emulated",
    )
