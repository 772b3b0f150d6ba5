"""The report that Python code gets: it prints its page, shows itself in a notebook, and is saved and loaded."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

from graphdoctor.reporters import files
from graphdoctor.reporters.formats import page_of
from graphdoctor.reporters.look import Look, look_for
from graphdoctor.reporters.plain_json import parsed, written
from graphdoctor.values import report as plain

_PRE = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;'
    "font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace\">{code}</pre>"
)


class Report(plain.Report, frozen=True):
    """Everything one analysis found. `reason` is the verdict in one sentence.

    `print(report)` writes the page that `graphdoctor analyze` shows, without colors; in a notebook
    the report shows itself.
    """

    @classmethod
    def of(cls, report: plain.Report) -> Report:
        """The same report, with these methods."""
        return cls(**{name: getattr(report, name) for name in report.__struct_fields__})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """A saved report. Raises UsageError, with the reason, for anything else."""
        return cls.of(parsed(files.read(Path(path)), plain.Report, name=str(Path(path))))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON that --json writes. Raises UsageError if the file cannot be made."""
        files.check_writable(Path(path))
        files.save(written(self), Path(path))

    def show(self, *, all: bool = False, frames: bool = False) -> None:
        """Write the page to stdout, in color on a terminal: --all and --frames of the command line."""
        look = look_for(sys.stdout, show_all=all, show_frames=frames)
        sys.stdout.write(page_of(self, look))

    def __str__(self) -> str:
        """The page without any escape, for 80 columns."""
        return page_of(self, Look(base=os.getcwd())).rstrip("\n")

    def _repr_html_(self) -> str:
        """The page as one element in which everything is escaped; its colors are inline styles."""
        from rich.console import Console
        from rich.text import Text

        look = Look(base=os.getcwd(), color_system="standard")
        text = Text.from_ansi(page_of(self, look))
        # In a notebook's kernel rich would show each line by itself, and record none.
        console = Console(record=True, file=io.StringIO(), width=look.width, force_jupyter=False)
        console.print(text, soft_wrap=True)
        return console.export_html(inline_styles=True, code_format=_PRE)

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """What IPython shows in a terminal, where there is no HTML."""
        printer.text(str(self))
