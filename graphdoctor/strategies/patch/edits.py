"""Insertions into the lines of files -> the changed text, and a unified diff that patch and git apply."""

from __future__ import annotations

import ast
import difflib
import io
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


class CannotEdit(Exception):
    """The file cannot be changed line by line; the text is the reason, as a sentence."""


@dataclass(frozen=True, slots=True, order=True)
class Insertion:
    """Text that goes into a file: behind so many bytes of a line, or below it as a line of its own.

    `line` counts from 1; 0 is before the first. `column` None makes it a line of its own.
    """

    file: str
    line: int
    text: str
    column: int | None = None


def changed_sources(insertions: Iterable[Insertion]) -> dict[str, tuple[str, str]]:
    """For each file its text, and its text with everything inserted. Raises CannotEdit."""
    by_file: dict[str, list[Insertion]] = {}
    for each in sorted(set(insertions), key=_position):
        by_file.setdefault(each.file, []).append(each)
    made = {}
    for file, own in by_file.items():
        text = source_of(file)
        changed = _inserted(text, own)
        try:
            ast.parse(changed)
        except (SyntaxError, ValueError) as error:
            raise CannotEdit(
                f"{os.path.basename(file)} would no longer be Python: {error}"
            ) from None
        made[file] = text, changed
    return made


def source_of(file: str) -> str:
    """The text of a file with the line endings that it has. Raises CannotEdit."""
    name = os.path.basename(file)
    try:
        content = Path(file).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode("utf-8")
    except (OSError, SyntaxError, ValueError):
        raise CannotEdit(f"{name} cannot be read as UTF-8.") from None
    if encoding != "utf-8" or "\r" in text.replace("\r\n", ""):
        raise CannotEdit(f"{name} has an encoding or line endings that patch would not keep.")
    return text


def unified(sources: dict[str, tuple[str, str]], folder: str) -> str:
    """One diff of all files, with their paths relative to a folder that holds them."""
    return "".join(
        (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        for file, (before, after) in sorted(sources.items())
        for line in _of_file(os.path.relpath(file, folder), before, after)
    )


def folder_for(files: Iterable[str], base: str) -> str:
    """The folder to apply a diff in: `base`, or one around all files where one is outside it."""
    each = list(files)
    inside = all(os.path.commonpath([base, file]) == base for file in each)
    return base if inside else os.path.commonpath([os.path.dirname(file) for file in each])


def after_imports(text: str) -> int:
    """The line below which one more import belongs: the last one of the first imports of a file."""
    tree = ast.parse(text)
    found = 0
    for number, statement in enumerate(tree.body):
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        is_docstring = (
            number == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        )
        if is_import or is_docstring:
            found = statement.end_lineno or statement.lineno
        elif found:
            break
    return found


def _position(each: Insertion) -> tuple[str, int, bool, int, str]:
    return each.file, each.line, each.column is None, each.column or 0, each.text


def _inserted(text: str, insertions: Sequence[Insertion]) -> str:
    lines = text.split("\n")
    ending = "\r" if lines and lines[0].endswith("\r") else ""
    is_ended = lines[-1] == ""
    for each in reversed(insertions):
        if each.column is None:
            lines.insert(each.line, each.text + ending)
        else:
            line = lines[each.line - 1].encode()
            new = line[: each.column] + each.text.encode() + line[each.column :]
            lines[each.line - 1] = new.decode()
    if (
        not is_ended
        and insertions[-1].column is None
        and insertions[-1].line == text.count("\n") + 1
    ):
        lines.append("")  # what was the last line had no ending
    return "\n".join(lines)


def _of_file(path: str, before: str, after: str) -> Iterator[str]:
    path = path.replace(os.sep, "/")
    name = f"{path}\t" if " " in path else path  # where it ends, as git writes it
    return difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]
