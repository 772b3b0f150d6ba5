"""Arranges findings by files of code, each line with the findings in its margin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdoctor.reporters.page import blocks
from graphdoctor.values.escape import TAB_COLUMNS
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import path_text


@dataclass(frozen=True, slots=True)
class Numbered:
    """A finding with the number that it has on the page."""

    number: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code: what is before the marked expression, in it and behind it.

    `skips` says that lines are left out before it.
    """

    number: int
    before: str
    marked: str
    after: str
    skips: bool
    notes: tuple[Numbered, ...]


@dataclass(frozen=True, slots=True)
class File:
    """The lines of one file that any finding shows, in order."""

    path: str
    lines: tuple[Line, ...]


def files_of(findings: Sequence[Numbered], base: str) -> list[File]:
    """Files in the order of their first finding; paths relative to `base`."""
    by_file: dict[str, list[Numbered]] = {}
    for one in findings:
        if one.finding.location is not None and one.finding.excerpt is not None:
            by_file.setdefault(one.finding.location.file, []).append(one)
    return [File(path_text(path, base), tuple(_lines(found))) for path, found in by_file.items()]


def _lines(findings: Sequence[Numbered]) -> Iterator[Line]:
    texts: dict[int, str] = {}
    notes: dict[int, list[Numbered]] = {}
    for one in findings:
        excerpt, location = one.finding.excerpt, one.finding.location
        assert excerpt is not None and location is not None
        # The numbered lines from the first to the last that say anything.
        kept = list(enumerate(excerpt.lines, start=excerpt.first_line))
        said = [place for place, (_, text) in enumerate(kept) if text.strip()]
        texts.update(kept[said[0] : said[-1] + 1] if said else kept)
        notes.setdefault(location.line, []).append(one)
    spread = {number: text.rstrip().expandtabs(TAB_COLUMNS) for number, text in texts.items()}
    indents = (len(text) - len(text.lstrip(" ")) for text in spread.values() if text)
    shared = min(indents, default=0)
    before: int | None = None
    for number in sorted(texts):
        here = tuple(notes.get(number, ()))
        start, end = _marked(texts[number], here, shared)
        text = spread[number][shared:]
        skips = before is not None and number != before + 1
        yield Line(number, text[:start], text[start:end], text[end:], skips, here)
        before = number


def _marked(text: str, notes: Sequence[Numbered], shared: int) -> tuple[int, int]:
    """Where the expression of the line's first finding begins and ends, tabs being spread; else (0, 0)."""
    columns = notes[0].finding.columns if notes else None
    if columns is None:
        return 0, 0
    start = len(text[: columns.start - 1].expandtabs(TAB_COLUMNS)) - shared
    end = len(text[: columns.end - 1].expandtabs(TAB_COLUMNS)) - shared
    return (start, end) if 0 <= start < end else (0, 0)


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, whose `parts` are plain text and code in turn, or lines of code."""

    parts: tuple[str, ...]
    code: str = ""


def prose(text: str) -> list[Block]:
    """Text of our own as the pages of rules have it: paragraphs, indented code, `code` in a line."""
    found = []
    for block in blocks(text):
        if block.startswith("    "):
            found.append(Block((), "\n".join(line[4:] for line in block.split("\n"))))
        else:
            found.append(Block(parts(" ".join(block.split()))))
    return found


def parts(text: str) -> tuple[str, ...]:
    """Plain text and what stands between backquotes, in turn; a backquote without a second is text."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        pieces[-2:] = [f"{pieces[-2]}`{pieces[-1]}"]
    return tuple(pieces)
