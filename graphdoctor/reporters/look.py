"""How a report is to look: what a reporter may know about the place it is shown in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TextIO

PLAIN_WIDTH = 80
NARROWEST, WIDEST = 60, 100


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


def look_for(
    stream: TextIO,
    *,
    color: Literal["auto", "always", "never"] = "auto",
    show_all: bool = False,
    show_frames: bool = False,
) -> Look:
    """How a page on this stream is to look. Without colours there are no escapes at all."""
    from rich.console import Console

    console = Console(file=stream, force_terminal=True if color == "always" else None)
    is_plain = color == "never" or (color == "auto" and console.no_color)
    if color == "always":
        color_system: str | None = console.color_system or "standard"
    else:
        color_system = None if is_plain else console.color_system
    is_terminal = stream.isatty()
    return Look(
        width=min(max(console.width, NARROWEST), WIDEST) if is_terminal else PLAIN_WIDTH,
        color_system=color_system,
        show_all=show_all,
        base=os.getcwd(),
        show_frames=show_frames,
    )
