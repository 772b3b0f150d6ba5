"""`graphdoctor diff BEFORE AFTER`: two saved reports -> what a change did, without torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.output import add_color_argument, look_of, progress, show
from graphdoctor.reporters.files import read
from graphdoctor.reporters.formats import names_of, written_as

if TYPE_CHECKING:
    from graphdoctor.values.report import Report


class DiffCommand:
    """Compare two reports: findings, regions, launches, waits, coverage and times.

    A report is what --json of `graphdoctor analyze` or `graphdoctor run`, or
    `graphdoctor check --report json=FILE` saved; needs no torch.
    """

    name = "diff"
    help = "say what a change did to a report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("before", metavar="BEFORE", type=Path, help="the report before")
        parser.add_argument("after", metavar="AFTER", type=Path, help="the report after")
        formats = names_of("Changes")
        parser.add_argument(
            "--output-format", choices=formats, default=formats[0], help=f"default: {formats[0]}"
        )
        add_color_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from graphdoctor.check.compare import compare

        names = (args.before.name, args.after.name)
        reports = []
        with progress(sys.stderr) as tell:
            for number, path in enumerate((args.before, args.after), start=1):
                tell(f"reading {path.name} ({number} of 2)")
                reports.append(_read(path))
            tell("comparing")
            changes = compare(*reports, names=names)
        show(written_as(args.output_format, changes, look_of(args)))
        return 0


def _read(path: Path) -> dict[str, Report]:
    """The reports in a file, by target. Raises UsageError."""
    from graphdoctor.reporters.plain_json import parsed
    from graphdoctor.values.check import Check
    from graphdoctor.values.file_kinds import saved_kind
    from graphdoctor.values.program import ProgramReport
    from graphdoctor.values.report import Report

    content = read(path)
    kind = saved_kind(content)
    if kind is not None and kind.name == "run":
        steps = parsed(content, ProgramReport, name=str(path)).steps
        return {step.name: step.report for step in steps if step.report is not None}
    if kind is not None and kind.name == "check":
        targets = parsed(content, Check, name=str(path)).targets
        return {one.name: one.report for one in targets if one.report is not None}
    report = parsed(content, Report, name=str(path))
    return {report.target.name: report}
