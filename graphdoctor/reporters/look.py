"""How a report is to look: what a reporter may know about the place it is shown in."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Look:
    """`color_system` is rich's name of what the terminal can do, None for text without escapes.

    `width` counts columns. `base` is the folder that paths are shown relative to, "" for none.
    `show_frames` lists every frame that led to a finding.
    """

    width: int = PLAIN_WIDTH
    color_system: str | None = None
    show_all: bool = False
    base: str = ""
    show_frames: bool = False
