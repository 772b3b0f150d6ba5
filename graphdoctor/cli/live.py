"""The page of an analysis on a terminal while strategies are tried: verdict and findings first."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from graphdoctor.check.selection import selected
from graphdoctor.cli.output import ProgressLine, show
from graphdoctor.reporters.analysis.terminal import render_beginning, render_trials
from graphdoctor.reporters.formats import written_as

if TYPE_CHECKING:
    from graphdoctor.check.settings.files import Project
    from graphdoctor.reporters.look import Look
    from graphdoctor.values.report import Report


class LivePage:
    """Writes what no strategy changes once, and what changes above the line of progress.

    Create it before stdout is redirected: what the model prints goes to stderr.
    """

    def __init__(self, project: Project, look: Look) -> None:
        self._project = project
        self._look = look
        self._stdout = sys.stdout
        self._beginning = ""

    def show(self, report: Report, progress: ProgressLine) -> None:
        """Show a report whose strategies are not all tried."""
        report = selected(report, self._project)
        if not self._beginning:
            self._beginning = render_beginning(report, self._look)
            progress("")
            with redirect_stdout(self._stdout):
                show(self._beginning)
        progress.show_above(f"\n{render_trials(report, self._look)}")

    def rest_of(self, report: Report) -> str:
        """The lines of the final page that are not on the terminal yet."""
        return written_as("terminal", report, self._look).removeprefix(self._beginning)
