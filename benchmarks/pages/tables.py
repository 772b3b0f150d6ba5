"""JSON lines -> rows; a head and rows -> the lines of a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Cells = Iterable[object]


def jsonl(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def table(head: Iterable[str], rows: Iterable[Cells]) -> Iterator[str]:
    """Ends with an empty line; a bar or a line break in a cell would end the cell, and is replaced."""
    head = tuple(head)
    yield _row(head)
    yield f"|{'---|' * len(head)}"
    yield from map(_row, rows)
    yield ""


def _row(cells: Cells) -> str:
    words = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(words)} |"
