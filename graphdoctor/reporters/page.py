"""Builds a page of text from headings, paragraphs and code, plain or with colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from graphdoctor.reporters.look import Look
from graphdoctor.values.escape import visible, visible_lines
from graphdoctor.values.figures import first_of

Piece = tuple[str, str]  # text, rich style
LABEL_COLUMNS = 16
CODE_INDENT = "    "
_FEWEST_DASHES = 3
# Drawn with this; output.show() has a plain character for it where an encoding lacks it.
HORIZONTAL = "\u2500"


class Page:
    """Lines within a width. Words are kept whole, so a path longer than a line stays one piece."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self._lines: list[Text] = []

    def line(self, *pieces: Piece) -> None:
        """One line, as it is."""
        self._lines.append(Text.assemble(*((visible(text), style) for text, style in pieces)))

    def wrapped(self, *pieces: Piece, indent: int) -> None:
        """A line that goes on below, indented, where it is longer than the page is wide."""
        whole = Text.assemble(*((visible(text), style) for text, style in pieces))
        if whole.cell_len <= self.look.width:
            self._lines.append(whole)
            return
        ends = [*_ends_of_lines(whole.plain, self.look.width, indent)]
        for number, part in enumerate(whole.divide(ends)):
            part.rstrip()
            self._lines.append(part if number == 0 else Text(" " * indent).append_text(part))

    def blank(self) -> None:
        if self._lines and self._lines[-1].plain:
            self._lines.append(Text())

    def heading(self, title: str, remark: str = "") -> None:
        """A title with a line to the right margin, after a blank line; a remark too long for it below."""
        self.blank()
        if (
            cell_len(f"{visible(title)}  {visible(remark)}") + _FEWEST_DASHES > self.look.width
            and remark
        ):
            self.heading(title)
            self.hanging("  ", remark, style="dim")
            return
        head = f"{visible(title)} "
        tail = f" {visible(remark)}" if remark else ""
        dashes = HORIZONTAL * max(_FEWEST_DASHES, self.look.width - cell_len(head) - cell_len(tail))
        self.line((head, "bold"), (dashes, "dim"), (tail, "dim"))

    def paragraph(self, text: str, *, indent: int = 0, style: str = "") -> None:
        """Text of one paragraph, wrapped."""
        self.hanging(" " * indent, text, style=style)

    def labelled(self, label: str, text: str, *, style: str = "") -> None:
        """A label in the label column and wrapped text beside it."""
        self.hanging(f"{label:<{LABEL_COLUMNS}}", text, style=style)

    def hanging(self, head: str, text: str, *, style: str = "", head_style: str = "dim") -> None:
        """Wrapped text beside `head`, which is indented and padded by the caller."""
        columns = cell_len(head)
        for number, words in enumerate(wrap(visible(text), self.look.width - columns)):
            self.line((head if number == 0 else " " * columns, head_style), (words, style))

    def prose(self, head: str, text: str) -> None:
        """Like `hanging`, for text of our own: keeps paragraphs apart, indented lines are code."""
        columns = cell_len(head)
        for number, block in enumerate(blocks(text)):
            if number:
                self.blank()
            if block.startswith(CODE_INDENT):
                self.code(block, indent=columns)
            else:
                self.hanging(" " * columns if number else head, " ".join(block.split()))

    def code(self, text: str, *, indent: int = 0) -> None:
        for row in visible_lines(text):
            self.line((" " * indent + row, "cyan"))

    def cropped(self, head: Piece, text: str, style: str) -> None:
        """One line of code; what does not fit is cut off, visibly."""
        room = max(8, self.look.width - cell_len(head[0]))
        if cell_len(text) > room:
            text = set_cell_size(text, room - 3) + "..."
        self.line(head, (text, style))

    def render(self) -> str:
        """The page, ending in a line break."""
        system = self.look.color_system
        if system is None:
            return "".join(f"{line.plain.rstrip()}\n" for line in self._lines)
        target = io.StringIO()
        console = Console(
            file=target,
            force_terminal=True,
            force_jupyter=False,  # in a notebook's kernel rich would show each line by itself
            color_system=system,  # type: ignore[arg-type]  # one of rich's own names
            no_color=False,
            highlight=False,
            legacy_windows=False,
        )
        for line in self._lines:
            console.print(line, soft_wrap=True)
        return target.getvalue()


def _ends_of_lines(text: str, width: int, indent: int) -> Iterator[int]:
    """After which characters lines end whose words fit `width` columns; all but the first are indented."""
    used = 0
    for word in re.finditer(r"\s*\S+", text):
        columns = cell_len(word.group())
        if used and used + columns > width:
            yield word.start() + len(word.group()) - len(word.group().lstrip())
            used, columns = indent, cell_len(word.group().lstrip())
        used += columns


def wrap(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` columns; a word that is longer gets a line of its own, unbroken."""
    words: list[str] = []
    used = 0
    for word in text.split(" "):
        columns = cell_len(word)
        if words and used + 1 + columns > width:
            yield " ".join(words)
            words, used = [], 0
        used += columns + (1 if words else 0)
        words.append(word)
    yield " ".join(words)


def blocks(text: str) -> Iterator[str]:
    """The paragraphs of a text, and its runs of indented lines, in order."""
    block: list[str] = []
    for line in (*text.split("\n"), ""):
        is_code = line.startswith(CODE_INDENT)
        if block and (not line.strip() or is_code != block[-1].startswith(CODE_INDENT)):
            yield "\n".join(block)
            block = []
        if line.strip():
            block.append(line.rstrip())


def listed(names: Iterable[str], *, most: int) -> str:
    """The first names, and how many more there are."""
    return first_of([*map(visible, names)], most)
