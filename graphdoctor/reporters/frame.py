"""Write code frames as compilers do: a headline, the place, lines of code with carets, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from graphdoctor.reporters.page import CODE_INDENT, Page
from graphdoctor.values.escape import TAB_COLUMNS, visible
from graphdoctor.values.finding import Finding, Severity
from graphdoctor.values.locations import Location, place_text

SEVERITY_STYLES: dict[Severity, str] = {
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
}
_BEFORE = 2  # lines of code above the marked one
_LABEL_COLUMNS = 5  # of "fix: " and its kind
_FEWEST_DIGITS = 1
_ROOM_FOR_CODE = 20  # columns that the marked expression gets before code loses its indentation


class CodeRow(NamedTuple):
    """A line of a frame. `gutter` is its number, or a sign such as "+"; `under` are its carets."""

    gutter: str
    text: str
    style: str = ""
    under: str = ""
    label: str = ""


class Note(NamedTuple):
    """A label such as "fix", its text, and lines of code below it, which the page does not wrap."""

    label: str
    text: str
    code: Sequence[str] = ()


class Frame(NamedTuple):
    """`title` is "error[GD101]"."""

    title: str
    title_style: str
    headline: str
    location: Location | None = None
    column: int = 0
    rows: Sequence[CodeRow] = ()
    notes: Sequence[Note] = ()


def write_frame(page: Page, frame: Frame) -> None:
    """The frame after a blank line. No row of code is wider than the page."""
    page.blank()
    page.wrapped(
        (frame.title, frame.title_style), (f": {frame.headline}", "bold"), indent=len(CODE_INDENT)
    )
    margin = _margin(frame.rows)
    if frame.location is not None:
        column = f":{frame.column}" if frame.column else ""
        where = f"{place_text(frame.location, page.look.base)}{column}"
        page.line((f"{margin}--> ", "blue"), (where, "bold cyan"))
    write_rows(page, frame.rows, frame.title_style)
    for note in frame.notes:
        write_note(page, f"{margin} = ", note)


def _margin(rows: Sequence[CodeRow]) -> str:
    return " " * max([_FEWEST_DIGITS, *(len(row.gutter) for row in rows)])


def write_rows(page: Page, rows: Sequence[CodeRow], style: str, *, lead: str = "") -> None:
    """The lines of code, each after `lead` and its gutter. `style` is that of carets."""
    margin = f"{lead}{_margin(rows)}"
    if rows:
        page.line((f"{margin} |", "blue"))
    for row in rows:
        number = f"{lead}{row.gutter:>{len(margin) - len(lead)}} | "
        head = f"{margin} {row.gutter} " if row.gutter in "+-" else number
        is_added = row.gutter == "+" and not row.text.lstrip().startswith("#")
        if is_added:  # a call of a new function is read to its end
            code = row.text.lstrip()
            indent = " " * (len(row.text) - len(code))
            page.hanging(f"{head}{indent}", code, style=row.style, head_style="blue")
        else:
            page.cropped((head, "blue"), row.text, row.style)
        if row.under:
            _write_under(page, margin, row, style)


def _write_under(page: Page, margin: str, row: CodeRow, style: str) -> None:
    """The carets and beside them the label; below them, if the page is too narrow for both."""
    head = (f"{margin} | ", "blue")
    room = page.look.width - cell_len(head[0])
    beside = f"{row.under} {row.label}".rstrip()
    if cell_len(beside) <= room:
        page.line(head, (beside, style))
        return
    page.cropped(head, row.under, style)
    indent = len(row.under) - len(row.under.lstrip(" "))
    page.line(head, (" " * max(0, min(indent, room - cell_len(row.label))) + row.label, style))


def write_note(page: Page, head: str, note: Note) -> None:
    """Wrapped text after the label, and the code below it."""
    first = f"{head}{f'{note.label}:':<{_LABEL_COLUMNS}} "
    page.hanging(first, " ".join(note.text.split()), head_style="blue")
    for line in note.code:
        page.line((" " * len(first) + line, "cyan"))


def code_rows(finding: Finding, label: str, *, width: int) -> list[CodeRow]:
    """The finding's line with carets and `label`, and up to two lines above it."""
    location, excerpt = finding.location, finding.excerpt
    if location is None or excerpt is None or finding.code is None:
        return []
    index = location.line - excerpt.first_line
    shown = excerpt.lines[max(0, index - _BEFORE) : index + 1]
    start, end = _marked(finding)
    shared = min((len(x) - len(x.lstrip()) for x in map(_spread, shown) if x), default=0)
    if start + _ROOM_FOR_CODE <= width:  # keeps the column of the code as it is in its file
        shared = 0
    found = [
        CodeRow(str(number), visible(_spread(line))[shared:])
        for number, line in enumerate(shown, start=location.line - len(shown) + 1)
    ]
    while len(found) > 1 and not found[0].text.strip():
        found.pop(0)
    under = " " * (start - shared) + "^" * max(1, end - start)
    found[-1] = found[-1]._replace(style="bold", under=under, label=label)
    return found


def edited_lines(finding: Finding) -> list[tuple[int, str]]:
    """The lines of the finding's excerpt as its edits leave them; [] if these are not the whole cure."""
    location, excerpt = finding.location, finding.excerpt
    if location is None or excerpt is None or not finding.edits:
        return []
    lines = dict(enumerate(excerpt.lines, start=excerpt.first_line))
    for edit in sorted(finding.edits, key=lambda edit: edit.start_column, reverse=True):
        line = edit.start_line
        if (
            edit.file != location.file
            or line not in lines
            or edit.end_line != line
            or "\n" in edit.new_text
        ):
            return []
        before, after = lines[line][: edit.start_column - 1], lines[line][edit.end_column - 1 :]
        lines[line] = f"{before}{edit.new_text}{after}"
    numbers = sorted({edit.start_line for edit in finding.edits})
    return [(number, lines[number].strip()) for number in numbers]


def _spread(line: str) -> str:
    return line.expandtabs(TAB_COLUMNS).rstrip()


def _marked(finding: Finding) -> tuple[int, int]:
    """Columns of the marked expression on the page, from 0: the whole line, if none is known."""
    line = (finding.code or "").rstrip()
    columns = finding.columns
    if columns is None or not line[columns.start - 1 : columns.end - 1].strip():
        first, last = len(line) - len(line.lstrip()), len(line)
    else:
        first, last = columns.start - 1, columns.end - 1
    return tuple(  # type: ignore[return-value]  # of two columns
        cell_len(visible(line[:place].expandtabs(TAB_COLUMNS))) for place in (first, last)
    )
