"""Writes cures into the functions that a captured step calls, where a cure is other text.

What a step calls keeps its place, so a replacement of its text is a change. The step's own statements are moved, and
have other changes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from graphdoctor.strategies.patch.source import (
    At,
    CannotEdit,
    Change,
    Text,
    import_of_torch,
    source_of,
)
from graphdoctor.values.finding import Edit, Finding
from graphdoctor.values.locations import is_library


def cured_in_functions(
    findings: Iterable[Finding], file: str, lines: range
) -> dict[Finding, tuple[Change, ...]]:
    """The findings that would make the capture fail outside these lines of a file, each with its changes."""
    found: dict[Finding, tuple[Change, ...]] = {}
    for finding in findings:
        at = finding.location
        if finding.effect != "capture-fails" or at is None or is_library(at.file):
            continue
        is_in_step = at.file == file and at.line in lines
        changes = [each for edit in finding.edits if (each := _change(edit)) is not None]
        if changes and not is_in_step and len(changes) == len(finding.edits):
            torch_used = {e.file for e in finding.edits if re.search(r"\btorch\.", e.new_text)}
            imports = [each for used in sorted(torch_used) for each in import_of_torch(used)]
            found[finding] = (*imports, *changes)
    return found


def _change(edit: Edit) -> Text | None:
    """The edit of an expression or of a statement; None for one of less, such as a part of an index."""
    try:
        ast.parse(edit.new_text)
        lines = source_of(edit.file).split("\n")
    except (SyntaxError, CannotEdit):
        return None
    start = edit.start_line, _in_bytes(lines[edit.start_line - 1], edit.start_column)
    end = edit.end_line, _in_bytes(lines[edit.end_line - 1], edit.end_column)
    return Text(At(edit.file, *start), At(edit.file, *end), edit.new_text) if start < end else None


def _in_bytes(line: str, column: int) -> int:
    return len(line[: column - 1].encode())
