"""Rows of a trace's page: how many are shown, and how names and places of code are written in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphdoctor.reporters.page import Page
from graphdoctor.values.figures import shortened
from graphdoctor.values.locations import Location, place_text

_Row = TypeVar("_Row")
_ROWS = 6
_LONGEST_NAME = 60


def at(location: Location | None, page: Page) -> str:
    if location is None:
        return ""
    return f" at {place_text(location, page.look.base)} ({location.function})"


def shown(page: Page, rows: Sequence[_Row]) -> Sequence[_Row]:
    return rows if page.look.show_all else rows[:_ROWS]


def kernel_text(kernel: str, longest: int = _LONGEST_NAME) -> str:
    """A kernel's name without what every name of torch's kernels begins with, shortened."""
    for part in ("void ", "at::native::", "(anonymous namespace)::"):
        kernel = kernel.replace(part, "")
    return shortened(kernel, longest)
