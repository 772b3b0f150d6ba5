"""Command-line arguments -> an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import graphdoctor
from graphdoctor.cli.analyze import AnalyzeCommand
from graphdoctor.cli.baseline import BaselineCommand
from graphdoctor.cli.calibrate import CalibrateCommand
from graphdoctor.cli.check import CheckCommand
from graphdoctor.cli.command import Command
from graphdoctor.cli.diff import DiffCommand
from graphdoctor.cli.explain import ExplainCommand
from graphdoctor.cli.failure import exit_code
from graphdoctor.cli.init import InitCommand
from graphdoctor.cli.report import ReportCommand
from graphdoctor.cli.rules import RulesCommand
from graphdoctor.cli.show_settings import ShowSettingsCommand
from graphdoctor.cli.sweep import SweepCommand
from graphdoctor.cli.trace import TraceCommand
from graphdoctor.values.errors import UsageError

COMMANDS: tuple[Command, ...] = (
    AnalyzeCommand(),
    SweepCommand(),
    TraceCommand(),
    CalibrateCommand(),
    ReportCommand(),
    ExplainCommand(),
    RulesCommand(),
    CheckCommand(),
    BaselineCommand(),
    DiffCommand(),
    InitCommand(),
    ShowSettingsCommand(),
)

EXIT_CODES = """exit codes:
  0  it worked, whatever the verdict; for check: nothing is new or worse
  1  check: a new finding or a regression; baseline: it would have to grow
  2  wrong usage, or a fault of graphdoctor
  3  the code under analysis failed
  4  this machine cannot do it, such as --device cuda without a GPU"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong call like every other error: in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Never raises but SystemExit, for --help and --version."""
    return exit_code(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    command: Command = args.command
    return command.run(args)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="graphdoctor",
        description=graphdoctor.__doc__,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"graphdoctor {graphdoctor.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=(command.__doc__ or "").replace("\n    ", "\n").rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
    return parser
