"""`graphdoctor check`: a project's models -> what is new or worse than its baseline."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from graphdoctor.cli.checking import add_run_arguments, choose, load_project, run
from graphdoctor.cli.output import (
    add_page_arguments,
    add_report_argument,
    check_reports_writable,
    look_of,
    save_reports,
    show,
)
from graphdoctor.values.errors import UsageError

if TYPE_CHECKING:
    from graphdoctor.values.check import Check

FORMATS = ("full", "concise", "json", "sarif", "github", "gitlab", "junit", "markdown", "html")
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
_MOST_SUMMARY_CHARACTERS = 250_000  # GitHub takes 1 MiB a step; a character has up to 4 bytes


class CheckCommand:
    """Fail if a model has a new finding, or lost what a graph could hold.

    Compares with the baseline that `graphdoctor baseline` wrote, and with the
    budgets in [tool.graphdoctor] of pyproject.toml. Needs no GPU. Exits with 1 on
    a new finding or a regression.
    """

    name = "check"
    help = "check a project's models before a merge"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run_arguments(parser)
        parser.add_argument(
            "--output-format",
            choices=FORMATS,
            default="full",
            metavar="FORMAT",
            help=f"one of {', '.join(FORMATS)}; default: full",
        )
        add_report_argument(parser, FORMATS)
        add_page_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_reports_writable(args)
        from graphdoctor.check.baseline import read

        project = load_project(args)
        accepted = read(project.baseline_path)
        targets, is_complete = choose(args.paths, project)
        outcomes = run(targets, project, inputs=args.inputs, no_cache=args.no_cache)

        from graphdoctor.check.gate import gate

        check = gate(outcomes, accepted, project, is_complete=is_complete)
        _report_all(check, args)
        return check.exit_code


def _report_all(check: Check, args: argparse.Namespace) -> None:
    """Files first: they must be there even if nobody reads stdout to its end."""
    from graphdoctor.reporters.check import CHECK_REPORTERS
    from graphdoctor.reporters.look import Look

    save_reports(args, lambda name: CHECK_REPORTERS[name](check, Look(show_all=True)))
    if args.output_format == "github":
        _write_step_summary(check)
    show(CHECK_REPORTERS[args.output_format](check, look_of(args)))


def _write_step_summary(check: Check) -> None:
    """On GitHub, what exceeds the caps of annotations is on the page of the job."""
    from graphdoctor.reporters.check.markdown import render_within

    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as summary:
            summary.write(render_within(check, _MOST_SUMMARY_CHARACTERS))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write the step summary {path}: {reason}") from error
