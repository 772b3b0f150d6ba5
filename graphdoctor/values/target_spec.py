"""Parses what a person calls a target: `file.py`, `file.py:name` or `package.module:name`. No torch."""

from __future__ import annotations

import re
from pathlib import Path

from graphdoctor.values.errors import UsageError

NOTEBOOK = ".ipynb"
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def split(spec: str) -> tuple[str, str | None]:
    """Where it is, and the name of the object in there, if it has one. Raises UsageError."""
    if Path(spec).exists():
        return spec, None
    where, colon, name = spec.rpartition(":")
    if not colon or not _DOTTED.fullmatch(name):
        if spec.endswith(".py"):
            return spec, None
        raise UsageError(
            f"{spec} names no target: write file.py, file.py:name or package.module:name"
            + ("" if colon else f" (there is no file {spec} in {Path.cwd()})")
        )
    return where, name


def is_file(where: str) -> bool:
    """Whether it is meant as a file, there or not, and not as a module."""
    return where.endswith(".py") or Path(where).exists() or not _DOTTED.fullmatch(where)


def check_file(path: Path) -> None:
    """Raise UsageError for a file that is missing, or is a folder."""
    if path.suffix == NOTEBOOK and path.is_file():
        raise UsageError(
            f"{path} is a notebook: put the model into a Python file, or analyze it where it is, with"
            " %load_ext graphdoctor in one cell and %%graphdoctor at the top of the cell with the step"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the Python file that has the model")
    if not path.exists():
        raise UsageError(f"{path} does not exist (looked in {Path.cwd()})")


def check_spec(spec: str) -> None:
    """Raise UsageError for a target that cannot be there, before anything is imported."""
    where, _ = split(spec)
    if is_file(where):
        check_file(Path(where))
