"""Findings -> page: the worst in full, with the user's code, the rest in a line each."""

from __future__ import annotations

from graphdoctor.reporters.page import POINTER, VERTICAL, Page, blocks, rows
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import cost_text
from graphdoctor.values.finding import EFFECT_WORDS, Effect, Finding, caller_of
from graphdoctor.values.locations import is_library, place_text

SHOWN_IN_FULL = 8
INDENT = 4
_EFFECTS = (*EFFECT_WORDS,)
_CERTAINTIES = ("confirmed", "likely", "unknown")
EFFECT_STYLES: dict[Effect, str] = {
    "capture-fails": "bold red",
    "replay-is-wrong": "bold magenta",
    "replay-is-slow": "bold yellow",
}


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
    """Those that the user wants to hear of."""
    return tuple(finding for finding in findings if finding.suppressed is None)


def write_findings(page: Page, findings: tuple[Finding, ...]) -> None:
    """The section; nothing if there are no findings. Those with one fix are shown as one."""
    causes = causes_of(active(findings))
    if not causes:
        return
    page.heading("Findings", "worst first")
    in_full = len(causes) if page.look.show_all else SHOWN_IN_FULL
    number = 1
    for cause in causes[:in_full]:
        page.blank()
        _write_cause(page, number, cause)
        number += len(cause)
    rest = [finding for cause in causes[in_full:] for finding in cause]
    if rest:
        page.blank()
    for finding in rest:
        _write_in_a_line(page, number, finding)
        number += 1
    page.blank()
    page.paragraph(_where_to_find_more(causes, in_full), indent=INDENT, style="dim")


def causes_of(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Findings with the same advice together, where the worst of them stands."""
    causes: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in worst_first(findings):
        causes.setdefault((finding.rule, finding.why, finding.fix), []).append(finding)
    return list(causes.values())


def _write_cause(page: Page, number: int, cause: list[Finding]) -> None:
    """The first in full with the advice, then where else it is to be followed."""
    first, *others = cause
    _write_place(page, number, first)
    _write_advice(page, first)
    if not others:
        return
    page.blank()
    page.paragraph("The same fix is for:", indent=INDENT, style="dim")
    for offset, finding in enumerate(others, start=1):
        if page.look.show_all:
            page.blank()
            _write_place(page, number + offset, finding)
        else:
            _write_in_a_line(page, number + offset, finding)
            _write_marked_line(page, finding)
        if page.look.show_all or finding.message != first.message:
            page.hanging(f"{' ' * INDENT}What  ", finding.message)


def _where_to_find_more(causes: list[list[Finding]], in_full: int) -> str:
    more = f"`graphdoctor explain {causes[0][0].rule}` says more about a rule."
    left = sum(map(len, causes)) - min(len(causes), in_full)
    if not left:
        return more
    noun = "other finding" if left == 1 else f"other {left} findings"
    return (
        f"{more} With --all, `graphdoctor analyze`, or `graphdoctor report` on a report saved"
        f" with --json, also shows the {noun} in full."
    )


def _write_place(page: Page, number: int, finding: Finding) -> None:
    page.wrapped(
        (f"{number:>2}  ", "bold"),
        (f"{finding.rule} {finding.name}", "bold"),
        (": ", ""),
        (EFFECT_WORDS[finding.effect], EFFECT_STYLES[finding.effect]),
        (certainty_text(finding), "dim"),
        indent=INDENT,
    )
    if finding.location is not None:
        page.line((" " * INDENT, ""), (place_text(finding.location, page.look.base), "bold cyan"))
    _write_callers(page, finding)
    context = context_text(finding)
    if context:
        page.paragraph(context, indent=INDENT, style="dim")
    if finding.excerpt is not None:
        page.blank()
        page.excerpt(rows(finding), indent=INDENT)
        page.blank()


def _write_callers(page: Page, finding: Finding) -> None:
    """The user's line that led into a library; with --frames every frame, outwards."""
    caller = caller_of(finding)
    frames = finding.stack if page.look.show_frames else (caller,) if caller is not None else ()
    for frame in frames:
        where = place_text(frame, page.look.base)
        function = f" in {frame.function}" if frame.function else ""
        style = "dim" if is_library(frame.file) else "bold cyan"
        page.line((" " * INDENT + "called from ", "dim"), (where, style), (function, "dim"))


def _write_advice(page: Page, finding: Finding) -> None:
    """What happens, why and what to write instead."""
    page.hanging(f"{' ' * INDENT}What  ", finding.message)
    why = finding.why if page.look.show_all else next(blocks(finding.why), "")
    page.prose(f"{' ' * INDENT}Why   ", why)
    page.prose(f"{' ' * INDENT}Fix   ", finding.fix)


def certainty_text(finding: Finding) -> str:
    words = {
        "confirmed": ", confirmed in this run",
        "likely": "",
        "unknown": ", could not be checked",
    }
    return words[finding.certainty]


def context_text(finding: Finding) -> str:
    """In which function and module it happens, in which phase, how often, and what it costs."""
    parts = []
    if finding.location is not None and finding.location.function:
        parts.append(f"in {finding.location.function}")
    if finding.module:
        parts.append(f"module {finding.module}")
    if finding.phase != "forward":
        parts.append(finding.phase)
    if finding.count > 1:
        parts.append(f"{finding.count:,} times a step")
    if finding.cost_us is not None:
        parts.append(cost_text(finding.cost_us, finding.cost_source))
    return ", ".join(parts)


def _write_marked_line(page: Page, finding: Finding) -> None:
    """The finding's own line of code, where it is known."""
    if finding.location is not None and finding.code is not None:
        head = f"{' ' * INDENT}{POINTER} {finding.location.line} {VERTICAL} "
        page.cropped((head, "bold red"), visible(finding.code.strip()), "bold")


def _write_in_a_line(page: Page, number: int, finding: Finding) -> None:
    place = place_text(finding.location, page.look.base) if finding.location else "no line known"
    told = [f"{finding.count:,}x"] if finding.count > 1 else []
    if finding.cost_us is not None:
        told.append(cost_text(finding.cost_us, finding.cost_source))
    times = f" ({', '.join(told)})" if told else ""
    caller = caller_of(finding)
    called = f", called from {place_text(caller, page.look.base)}" if caller is not None else ""
    page.wrapped(
        (f"{number:>2}  ", "bold"),
        (f"{finding.rule} {finding.name} ", ""),
        (f"{place}{called}", "cyan"),
        (f" {EFFECT_WORDS[finding.effect]}{times}", EFFECT_STYLES[finding.effect]),
        indent=INDENT,
    )
