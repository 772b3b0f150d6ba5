"""`graphdoctor report`, `view` and `diff` show saved reports, and what changed between two."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.output import (
    STDOUT,
    add_color_argument,
    add_page_arguments,
    look_of,
    progress,
    show,
)
from graphdoctor.reporters.files import check_writable, read, save
from graphdoctor.reporters.formats import names_of, written_as

if TYPE_CHECKING:
    from graphdoctor.values.report import Report


class ViewCommand:
    """Show a report in a browser: what --json of `analyze`, `run`, `trace` and
    `audit` saved, or a check.

    Several checks (`graphdoctor check --report json=FILE`), from the oldest on, are
    shown as the history of a repository, in curves.

    The page is one file that needs no network and no server. Without a screen, as
    over ssh, it is written, and its path printed. Needs no torch.
    """

    name = "view"
    help = "show a saved report in a browser"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "files",
            metavar="FILE",
            nargs="+",
            type=Path,
            help="the saved report; several are checks of one repository, the oldest first",
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="PAGE",
            help="write the page to this file, - for stdout, and open nothing",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.output not in (None, STDOUT):
            check_writable(Path(args.output))
        from graphdoctor.reporters.look import Look
        from graphdoctor.reporters.saved import page_of

        files = [(str(path), read(path)) for path in args.files]
        page = page_of(files, Look(base=os.getcwd()))
        if args.output == STDOUT:
            show(page)
        elif args.output is not None:
            save(page, Path(args.output))
        else:
            _open(page, args.files[-1].stem)
        return 0


def _open(page: str, name: str) -> None:
    """The page outlives the command, since a browser reads it when it likes."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="graphdoctor-"))
    path = folder / f"{name}.html"
    save(page, path)
    print(path)
    if not _opened(path.as_uri()):
        print(
            "graphdoctor: there is no browser to open it here; copy the file to where one is,"
            " or choose its place with -o PAGE",
            file=sys.stderr,
        )


def _opened(address: str) -> bool:
    """Whether a browser with a window took it; a browser of a terminal would only get in the way."""
    has_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not has_screen:
        return False
    import webbrowser

    return webbrowser.open(address)


class ReportCommand:
    """Show what --json of `analyze`, `run`, `sweep`, `trace`, `watch` and `audit`,
    or `check --report json=FILE`, saved; needs no torch.
    """

    name = "report"
    help = "show a saved report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="the saved report")
        add_page_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from graphdoctor.reporters.files import read
        from graphdoctor.reporters.saved import text_of

        show(text_of(read(args.file), look_of(args), name=str(args.file)))
        return 0


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
