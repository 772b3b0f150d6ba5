"""`graphdoctor merge`: the checks of several machines -> one check of all their targets."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphdoctor.cli.arguments import add_settings_arguments
from graphdoctor.cli.check import add_format_arguments, report_all
from graphdoctor.cli.checking import load_project
from graphdoctor.cli.output import check_reports_writable


class MergeCommand:
    """Make one check of those that `graphdoctor check --report json=FILE` saved.

    As `graphdoctor check` of all their targets would have been: one page, one
    SARIF, one exit code, against the baseline and the budgets that hold here. A
    shard that is missing is an error. `graphdoctor baseline --from FILE ...`
    accepts what they found.
    """

    name = "merge"
    help = "make one check of several machines' shares"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "files", nargs="+", metavar="FILE", type=Path, help="a saved check, as JSON"
        )
        add_settings_arguments(parser)
        add_format_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_reports_writable(args)
        from graphdoctor.check.baseline import read
        from graphdoctor.check.gate import gate
        from graphdoctor.check.saved_checks import outcomes_of, read_checks

        project = load_project(args)
        accepted = read(project.baseline_path)
        outcomes, is_complete = outcomes_of(read_checks(args.files), project)
        check = gate(outcomes, accepted, project, is_complete=is_complete)
        report_all(check, args)
        return check.exit_code
