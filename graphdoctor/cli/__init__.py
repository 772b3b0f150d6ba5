"""The command line: runs a command for its arguments and returns the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, Protocol

import graphdoctor
from graphdoctor.cli.analyze import AnalyzeCommand
from graphdoctor.cli.audit import AuditCommand
from graphdoctor.cli.calibrate import CalibrateCommand
from graphdoctor.cli.check import BaselineCommand, CheckCommand, MergeCommand
from graphdoctor.cli.completion import CompletionCommand, answer_shell
from graphdoctor.cli.explain import ExplainCommand, RulesCommand
from graphdoctor.cli.init import InitCommand, ShowSettingsCommand
from graphdoctor.cli.output import ReaderGone
from graphdoctor.cli.run import RunCommand
from graphdoctor.cli.saved import DiffCommand, ReportCommand, ViewCommand
from graphdoctor.cli.sweep import SweepCommand
from graphdoctor.cli.trace import TraceCommand
from graphdoctor.cli.watch import WatchCommand
from graphdoctor.values.errors import GraphDoctorError, UsageError, UserCodeError, raise_if_of_torch
from graphdoctor.values.escape import visible, visible_lines
from graphdoctor.values.spelling import meant

EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "GRAPHDOCTOR_DEBUG"


class Command(Protocol):
    """One command. Its class docstring is the description in --help.

    Its module imports nothing heavy, so that --help is quick: `run` imports what it needs.
    """

    name: str
    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code. Raises GraphDoctorError for what a person can act on."""


COMMANDS: tuple[Command, ...] = (
    AnalyzeCommand(),
    RunCommand(),
    WatchCommand(),
    AuditCommand(),
    SweepCommand(),
    TraceCommand(),
    CalibrateCommand(),
    ReportCommand(),
    ViewCommand(),
    ExplainCommand(),
    RulesCommand(),
    CheckCommand(),
    MergeCommand(),
    BaselineCommand(),
    DiffCommand(),
    InitCommand(),
    ShowSettingsCommand(),
    CompletionCommand(),
)

EXIT_CODES = """exit codes:
  0  it worked, whatever the verdict; for check: nothing is new or worse;
     for run, watch and audit: the program's own code, whatever it is
  1  check: a new finding or a regression; baseline: it would grow;
     audit: the program ended with 0, and a replay used stale memory
  2  wrong usage, or a bug in graphdoctor
  3  the code under analysis failed
  4  this machine cannot do it, such as --device cuda without a GPU"""


class Parser(argparse.ArgumentParser):
    """Reports a wrong call like every other error: in one sentence, with the name that was meant."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def unrecognized(self, arguments: Sequence[str]) -> NoReturn:
        """Say which arguments mean nothing to this command."""
        option = next((one.partition("=")[0] for one in arguments if one.startswith("-")), "")
        known = [one for one in self._option_string_actions if one.startswith("--")]
        self.error(f"unrecognized arguments: {' '.join(arguments)}{meant(option, known)}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """In the place of argparse's own, which names nothing near before Python 3.14."""
        if action.choices is not None and value not in action.choices:
            known = [*map(str, action.choices)]
            raise argparse.ArgumentError(
                action,
                f"invalid choice: {value!r} (choose from {', '.join(known)}){meant(str(value), known)}",
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Never raises but SystemExit, for --help and --version."""
    return _exit_code(lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    parser = make_parser()
    answer_shell(parser)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        args.parser.unrecognized(unknown)
    if args.command is None:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    command: Command = args.command
    return command.run(args)


def make_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="graphdoctor",
        description=graphdoctor.__doc__,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"graphdoctor {graphdoctor.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(command=None, parser=parser)
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
        subparser.set_defaults(command=command, parser=subparser)
    return parser


def _exit_code(run: Callable[[], int]) -> int:
    """What `run` returns, or the code of its error, which is then on stderr."""
    try:
        return _without_faults_of_torch(run)
    except ReaderGone:
        return 0
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED
    except UserCodeError as error:
        _say(f"error: {_of_rank()}{visible(str(error))}\n{error.frames}")
        return error.exit_code
    except GraphDoctorError as error:
        _say(f"error: {_of_rank()}{error}")
        return error.exit_code
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _say(
            "error: this is a bug in graphdoctor, please report it with"
            f" {DEBUG_VARIABLE}=1 and this text: {visible(what)}"
        )
        return GraphDoctorError.exit_code


def _without_faults_of_torch(run: Callable[[], int]) -> int:
    try:
        return run()
    except (ImportError, OSError) as error:
        raise_if_of_torch(error)
        raise


def _of_rank() -> str:
    """Whose error it is, where a launcher started several processes that share a terminal."""
    from graphdoctor.device.processes.launched import rank_and_count

    rank, count = rank_and_count()
    return f"on rank {rank}: " if count > 1 else ""


def _say(text: str) -> None:
    """Write to stderr, so that nothing in the text can be obeyed by the terminal."""
    lines = visible_lines(f"graphdoctor: {text}".rstrip("\n"))
    if os.environ.get(DEBUG_VARIABLE) == "1":
        import traceback

        lines += visible_lines(traceback.format_exc())
    with suppress(OSError):  # nobody reads stderr either; the exit code still tells
        print("\n".join(lines), file=sys.stderr)
