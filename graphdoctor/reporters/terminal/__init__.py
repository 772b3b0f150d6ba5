"""Report -> a page for people: the verdict first, then the reason, then what to do."""

from __future__ import annotations

from collections import Counter

from graphdoctor.model import Report, Verdict
from graphdoctor.reporters.figures import (
    EFFECT_WORDS,
    count_text,
    path_text,
    place_text,
    ratio_range,
    share_range,
)
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.page import Page
from graphdoctor.reporters.terminal.capture import write_capture
from graphdoctor.reporters.terminal.findings import worst_first, write_findings
from graphdoctor.reporters.terminal.gain import basis_text, write_gain

INDENT = 2
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "safe": ("SAFE", "bold green"),
    "partly-safe": ("PARTLY SAFE", "bold yellow"),
    "unsafe": ("UNSAFE", "bold red"),
    "unknown": ("UNKNOWN", "bold blue"),
}


def render(report: Report, look: Look) -> str:
    """The page. Text from the model can neither colour nor move anything in it."""
    page = Page(look)
    _write_verdict(page, report)
    _write_summary(page, report)
    write_findings(page, report.findings)
    write_capture(page, report)
    write_gain(page, report)
    _write_remarks(page, report)
    _write_origin(page, report)
    return page.render()


def _write_verdict(page: Page, report: Report) -> None:
    word, style = _VERDICTS[report.verdict]
    page.line((word, style), (f"  {report.target.name}, {report.target.mode}", "dim"))
    page.paragraph(report.reason, style="bold")


def _write_summary(page: Page, report: Report) -> None:
    """What a reader needs who reads no further."""
    page.blank()
    if report.findings:
        page.labelled("Findings", _findings_summary(report), indent=INDENT)
        page.labelled("Do first", _first_step(report, page.look.base), indent=INDENT)
    else:
        page.labelled("Findings", "none", indent=INDENT)
    page.labelled("Gain", _gain_summary(report), indent=INDENT)


def _findings_summary(report: Report) -> str:
    by_effect = Counter(finding.effect for finding in report.findings)
    parts = (
        f"{by_effect[effect]}x {words}"
        for effect, words in EFFECT_WORDS.items()
        if by_effect[effect]
    )
    return f"{len(report.findings)}: {', '.join(parts)}"


def _first_step(report: Report, base: str) -> str:
    worst = worst_first(report.findings)[0]
    place = f"{place_text(worst.location, base)}, " if worst.location else ""
    return f"{place}{worst.rule} {worst.name}"


def _gain_summary(report: Report) -> str:
    measured, estimate = report.measurement, report.estimate
    if measured is not None:
        return f"{measured.speedup:.2f}x ({measured.word}), measured on {measured.gpu}"
    if estimate is None:
        return "not estimated"
    return (
        f"{ratio_range(estimate.speedup)}, {basis_text(estimate)}; launch-bound"
        f" {share_range(estimate.launch_bound_share)}"
    )


def _write_remarks(page: Page, report: Report) -> None:
    """What was chosen on the user's behalf, and what could not be seen or checked."""
    if not (report.limits or report.target.notes or report.trace_files):
        return
    page.heading("Remarks")
    for limit in report.limits:
        page.labelled("Not checked", limit, indent=INDENT)
    for note in report.target.notes:
        page.labelled("Note", note, indent=INDENT)
    for path in report.trace_files:
        page.labelled("Trace", path_text(path, page.look.base), indent=INDENT)


def _write_origin(page: Page, report: Report) -> None:
    """What the report is about and where it was made."""
    machine = report.machine
    page.heading("Basis")
    page.labelled(
        "Target",
        f"{path_text(report.target.file, page.look.base)}, found by {report.target.entry}",
        indent=INDENT,
    )
    page.labelled(
        "Step",
        f"{count_text(report.operators, 'operator')}, {count_text(report.iterations, 'iteration')}"
        " compared",
        indent=INDENT,
    )
    device = "emulated CUDA device" if machine.device == "emulated" else machine.device_name
    page.labelled(
        "Machine",
        f"{device}, torch {machine.torch}, Python {machine.python}, {machine.platform};"
        f" graphdoctor {report.tool_version}",
        indent=INDENT,
    )
