"""JSON lines -> rows; a head and rows -> the lines of a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Cells = Iterable[object]

# Reports of older versions and notes to the data, in the words that graphdoctor's pages use now.
_REWORDED = {
    ", which a GPU refuses but for those of dimension 0": "; CUDA operators accept a CPU tensor only if it is 0-d",
    "it was not prepared in time beside the others": "preparing it with the other strategies took too long",
    "eager's own moves by up to": "eager's own result moves by up to",
    "where its state is rounded anew before each step, so that rounding explains it and nothing can be proved": "if its"
    " state is rounded before each step, so rounding explains the difference and the result is not verified",
    "from d736e97, but for 364 from": "from d736e97, except 364 from",
    "are asked since, because another mask than eager's cannot be told from a mistake by values": "are run since,"
    " because comparing values cannot separate another mask from a mistake",
    "a step on one core, beside 30 others": "a step on one core, while 30 other steps ran",
    "so that attention goes both ways (masking_utils asks": "so attention is bidirectional (masking_utils calls",
    "a type that is asked for": "a query of a type",
}


def jsonl(path: Path) -> list[Row]:
    """The rows, whose texts are reworded here: the data files keep the texts that were saved."""
    text = path.read_text(encoding="utf-8")
    for saved, shown in _REWORDED.items():
        text = text.replace(saved, shown)
    return [json.loads(line) for line in text.splitlines() if line]


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
