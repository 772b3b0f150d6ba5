"""Fail if a string literal or a page of docs uses a word that graphdoctor's English does not use.

Run by `make lint`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_BANNED = re.compile(
    r"\b(tells|told|asks|asked|another one|stands|stood|lies|lay|anew|but for|apart|hangs on|nobody|for ever"
    r"|as ever|in the place of|makes of|comes of|wants|taken for|foreseen|at all|by itself|of its own|so that"
    r"|beside|speed-ups?|colou?red with|colours?|analysed|synchronise[ds]?)\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


class Place(NamedTuple):
    """A retired word, the file that has it, and the line."""

    file: str
    line: int
    word: str


def places() -> Iterator[Place]:
    """Every retired word of the package's string literals and of the documentation."""
    for path in sorted((ROOT / "graphdoctor").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docstrings
            ):
                for found in _BANNED.finditer(node.value):
                    yield Place(str(path.relative_to(ROOT)), node.lineno, found.group().lower())
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "skills").rglob("*.md")]
    for path in sorted(pages):
        text = _CODE.sub(
            lambda code: re.sub(r"[^\n]", " ", code.group()), path.read_text(encoding="utf-8")
        )
        for number, line in enumerate(text.split("\n"), start=1):
            for found in _BANNED.finditer(line):
                yield Place(str(path.relative_to(ROOT)), number, found.group().lower())


def main() -> int:
    found = [f"{one.file}:{one.line}: retired word {one.word!r}" for one in places()]
    print("\n".join(found) or "no retired word")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
