"""Tells which lines of Python are the user's own, and how text names them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable

from msgspec import Struct

from graphdoctor.values.escape import visible

_PACKAGES = ("site-packages/", "dist-packages/")


class Location(Struct, frozen=True, gc=False):
    """A line of Python. `file` is the path Python knows it by; `line` counts from 1."""

    file: str
    line: int
    function: str = ""


class Lines(Struct, frozen=True):
    """Lines of a file that belong together, such as those of a function."""

    file: str
    first: int
    last: int

    def holds(self, place: Location) -> bool:
        return place.file == self.file and self.first <= place.line <= self.last


class Columns(Struct, frozen=True):
    """An expression within its line: characters from 1, `end` is the first one behind it."""

    start: int
    end: int


class Excerpt(Struct, frozen=True):
    """Source lines around a location, kept so that a saved report can show them anywhere."""

    first_line: int
    lines: tuple[str, ...]


def is_library(path: str) -> bool:
    """Whether a file belongs to an installed package, on this machine or where a report was made."""
    plain = path.replace("\\", "/")
    return plain.startswith(_PACKAGES) or any(f"/{folder}" in plain for folder in _PACKAGES)


def python_folders(*names: str) -> tuple[str, ...]:
    """Folders of this Python's by sysconfig's names, as Python names them first, then as they really are."""
    named = [sysconfig.get_paths()[name] for name in names]
    return tuple(f"{each}{os.sep}" for each in (*named, *map(os.path.realpath, named)))


def own_line(frames: Iterable[Location | None]) -> Location | None:
    """The first that is not a library's; None where all are."""
    return next(
        (frame for frame in frames if frame is not None and not is_library(frame.file)), None
    )


def place_text(location: Location, base: str = "") -> str:
    """file:line, relative to `base` where the file lies below it."""
    return f"{path_text(location.file, base)}:{location.line}"


def places_text(
    places: Iterable[Location | None], base: str = "", *, most: int | None = None
) -> str:
    """ "train.py:30, :32, layers.py:7 and 2 more", each place once: a file is named again only where it changes."""
    unique = [*dict.fromkeys(None if one is None else (one.file, one.line) for one in places)]
    words: list[str] = []
    before = ""
    for one in unique[:most]:
        if one is None:
            words.append("no line known")
            continue
        file, line = one
        words.append(f"{'' if file == before else path_text(file, base)}:{line}")
        before = file
    more = len(unique) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def path_text(path: str, base: str = "") -> str:
    """The path, relative to `base` where it lies below it."""
    prefix = base.rstrip(os.sep) + os.sep
    return visible(path.removeprefix(prefix) if base else path)


def file_line(location: Location) -> str:
    """ "train.py:31", without this machine's folders."""
    return f"{os.path.basename(location.file)}:{location.line}"


def bracketed(location: Location | None) -> str:
    """ " (train.py:31)", or nothing where the line is not known."""
    return f" ({file_line(location)})" if location is not None else ""


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
