"""Findings -> page: the worst in full, with the user's code, the rest in a line each."""

from __future__ import annotations

from graphdoctor.escape import TAB_COLUMNS, visible
from graphdoctor.model import Effect, Excerpt, Finding
from graphdoctor.reporters.figures import EFFECT_WORDS, place_text
from graphdoctor.reporters.page import POINTER, VERTICAL, Page, blocks

SHOWN_IN_FULL = 8
INDENT = 4
_EFFECTS: tuple[Effect, ...] = ("capture-fails", "replay-is-wrong", "replay-is-slow")
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


def write_findings(page: Page, findings: tuple[Finding, ...]) -> None:
    """The section; nothing if there are no findings."""
    if not findings:
        return
    page.heading("Findings", "worst first")
    ordered = worst_first(findings)
    in_full = len(ordered) if page.look.show_all else SHOWN_IN_FULL
    advice: dict[tuple[str, str], int] = {}
    for number, finding in enumerate(ordered[:in_full], start=1):
        page.blank()
        _write_place(page, number, finding)
        first = advice.setdefault((finding.why, finding.fix), number)
        _write_advice(page, finding, as_for=first if first != number else None)
    if ordered[in_full:]:
        page.blank()
    for number, finding in enumerate(ordered[in_full:], start=in_full + 1):
        _write_in_a_line(page, number, finding)
    page.blank()
    page.paragraph(_where_to_find_more(ordered, in_full), indent=INDENT, style="dim")


def _where_to_find_more(ordered: list[Finding], in_full: int) -> str:
    more = f"`graphdoctor explain {ordered[0].rule}` says more about a rule."
    if len(ordered) <= in_full:
        return more
    return (
        f"{more} With --all, `graphdoctor analyze`, or `graphdoctor report` on a report saved"
        f" with --json, also shows the last {len(ordered) - in_full} findings in full."
    )


def _write_place(page: Page, number: int, finding: Finding) -> None:
    page.line(
        (f"{number:>2}  ", "bold"),
        (f"{finding.rule} {finding.name}", "bold"),
        (": ", ""),
        (EFFECT_WORDS[finding.effect], EFFECT_STYLES[finding.effect]),
        (_certainty(finding), "dim"),
    )
    if finding.location is not None:
        page.line((" " * INDENT, ""), (place_text(finding.location, page.look.base), "bold cyan"))
    context = _context(finding)
    if context:
        page.paragraph(context, indent=INDENT, style="dim")
    if finding.excerpt is not None:
        page.blank()
        _write_excerpt(page, finding.excerpt, finding.location.line if finding.location else 0)
        page.blank()


def _write_advice(page: Page, finding: Finding, *, as_for: int | None) -> None:
    """What happens, why and what to write instead; `as_for` is a finding that said the same."""
    page.hanging(f"{' ' * INDENT}What  ", finding.message)
    if as_for is not None:
        page.hanging(f"{' ' * INDENT}Fix   ", f"as for {as_for}")
        return
    why = finding.why if page.look.show_all else next(blocks(finding.why), "")
    page.prose(f"{' ' * INDENT}Why   ", why)
    page.prose(f"{' ' * INDENT}Fix   ", finding.fix)


def _certainty(finding: Finding) -> str:
    words = {
        "confirmed": ", confirmed in this run",
        "likely": "",
        "unknown": ", could not be checked",
    }
    return words[finding.certainty]


def _context(finding: Finding) -> str:
    """In which function and module it happens, in which phase, how often, and who called it."""
    parts = []
    if finding.location is not None and finding.location.function:
        parts.append(f"in {finding.location.function}")
    if finding.module:
        parts.append(f"module {finding.module}")
    if finding.phase != "forward":
        parts.append(finding.phase)
    if finding.count > 1:
        parts.append(f"{finding.count:,} times a step")
    return ", ".join(parts)


def _write_excerpt(page: Page, excerpt: Excerpt, marked: int) -> None:
    """The lines, without the indent that they share; `marked` is a line number."""
    rows = [visible(line.expandtabs(TAB_COLUMNS).rstrip()) for line in excerpt.lines]
    start = next((index for index, row in enumerate(rows) if row), 0)
    while rows and not rows[-1]:
        rows.pop()
    shared = min((len(row) - len(row.lstrip(" ")) for row in rows if row), default=0)
    digits = len(str(excerpt.first_line + len(rows) - 1))
    for number, row in enumerate(rows[start:], start=excerpt.first_line + start):
        is_marked = number == marked
        head = f"{' ' * INDENT}{POINTER if is_marked else ' '} {number:>{digits}} {VERTICAL} "
        style = "bold red" if is_marked else "dim"
        page.cropped((head, style), row[shared:], "bold" if is_marked else "")


def _write_in_a_line(page: Page, number: int, finding: Finding) -> None:
    place = place_text(finding.location, page.look.base) if finding.location else "no line known"
    times = f" ({finding.count:,}x)" if finding.count > 1 else ""
    page.line(
        (f"{number:>2}  ", "bold"),
        (f"{finding.rule} {finding.name} ", ""),
        (place, "cyan"),
        (f" {EFFECT_WORDS[finding.effect]}{times}", EFFECT_STYLES[finding.effect]),
    )
