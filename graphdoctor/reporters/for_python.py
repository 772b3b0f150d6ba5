"""What a report's own methods do: its page as text, on stdout and in a notebook; its file."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from graphdoctor.reporters.analysis import json, terminal
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.reporters.look import Look, look_for
from graphdoctor.values.report import Report

_PRE = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;'
    "font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace\">{code}</pre>"
)


def page(report: Report) -> str:
    """The page without any escape, for 80 columns."""
    return terminal.render(report, Look(base=os.getcwd()))


def show(report: Report, *, show_all: bool, show_frames: bool) -> None:
    look = look_for(sys.stdout, show_all=show_all, show_frames=show_frames)
    sys.stdout.write(terminal.render(report, look))


def html(report: Report) -> str:
    """The page as one element in which everything is escaped; its colours are styles of their own."""
    from rich.console import Console
    from rich.text import Text

    look = Look(base=os.getcwd(), color_system="standard")
    text = Text.from_ansi(terminal.render(report, look))
    # In a notebook's kernel rich would show each line by itself, and record none.
    console = Console(record=True, file=io.StringIO(), width=look.width, force_jupyter=False)
    console.print(text, soft_wrap=True)
    return console.export_html(inline_styles=True, code_format=_PRE)


def save_report(report: Report, path: str | os.PathLike[str]) -> None:
    check_writable(Path(path))
    save(json.render(report, Look()), Path(path))


def load_report(path: str | os.PathLike[str]) -> Report:
    return json.read(Path(path))
