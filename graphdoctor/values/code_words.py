"""A line of Python -> how a sentence names it, without this machine's folders."""

from __future__ import annotations

import os

from graphdoctor.values.report import Location


def line_of(location: Location | None) -> str:
    """ "line 31 of train.py", or "the step" where the line is not known."""
    if location is None:
        return "the step"
    return f"line {location.line} of {os.path.basename(location.file)}"


def in_place(location: Location | None) -> str:
    """ " in line 31 of train.py", or nothing where the line is not known."""
    return f" in {line_of(location)}" if location is not None else ""


def with_place(reason: str, location: Location | None) -> str:
    """A reason and its line as one sentence."""
    return f"{reason.rstrip('. ')}{in_place(location)}"
