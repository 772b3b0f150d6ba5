"""`graphdoctor analyze TARGET` diagnoses a model, and shows a page or writes JSON."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.arguments import (
    DEFAULT_BUDGET_S,
    DEFAULT_LIMIT_S,
    add_input_arguments,
    add_settings_arguments,
    add_step_arguments,
    at_least,
    names,
    seconds,
)
from graphdoctor.cli.checking import running
from graphdoctor.cli.output import (
    STDOUT,
    ProgressLine,
    add_json_argument,
    add_page_arguments,
    add_report_argument,
    check_json_writable,
    check_reports_writable,
    look_of,
    save_reports,
    show_or_save,
)
from graphdoctor.reporters.formats import written_as
from graphdoctor.values.errors import CannotDoItHere, Interrupted, UsageError

if TYPE_CHECKING:
    from graphdoctor.check.settings.files import Project
    from graphdoctor.cli.live import LivePage
    from graphdoctor.values.options import AnalyzeOptions
    from graphdoctor.values.report import Report

FEWEST_ITERATIONS = 2


class AnalyzeCommand:
    """Say if a step is safe as a CUDA graph, what stops it, and what it would gain.

    TARGET is one of
      file.py                a file that says what to analyze (see README.md)
      file.py:name           one object in a file
      package.module:name    one object in an importable module

    `# graphdoctor: ignore[GD101] reason` on a statement, or select, ignore and
    per-file-ignores of [tool.graphdoctor], leave findings out of the count; they
    still count for the verdict.
    """

    name = "analyze"
    help = "diagnose a model"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add_step_arguments(parser)
        add(
            "--iterations",
            type=at_least(FEWEST_ITERATIONS),
            default=4,
            metavar="N",
            help="how many steps are compared with each other (default: 4)",
        )
        add_input_arguments(parser)
        add(
            "--values",
            choices=("auto", "real", "none"),
            default="auto",
            help="none: run the step on shapes only, which takes little memory and time and verifies no"
            " replay; real: never do so; auto (the default): none for weights on the meta device, and"
            " where the memory would not suffice",
        )
        add(
            "--strategies",
            type=names,
            metavar="NAMES",
            help="ways to run the step faster to try and compare, such as whole,modules,compile;"
            " none tries none (default: those that fit the device)",
        )
        add(
            "--budget",
            type=seconds,
            default=DEFAULT_BUDGET_S,
            metavar="TIME",
            help="how long strategies may take in all: 120s (the default), 2m ...",
        )
        _add_rank_arguments(parser)
        add_json_argument(parser, "report")
        add_report_argument(parser, "Report")
        add(
            "--trace-dir",
            metavar="DIR",
            help="write runs for TensorBoard and Perfetto into this folder",
        )
        add(
            "--blame",
            metavar="FILE",
            help="if a replay of the whole step is wrong, write the smallest script there that shows it",
        )
        add_page_arguments(parser)
        add_settings_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        begun_s = time.time()
        check_json_writable(args)
        check_reports_writable(args)
        if args.blame and args.ranks > 1:
            raise UsageError("--blame runs the step on one rank: leave --ranks out")
        from graphdoctor.check.settings.files import load

        project = load(Path.cwd(), overrides=args.config, isolated=args.isolated)
        live = _live_page(args, project)
        interrupted = None
        try:
            with running(args) as tell:
                if args.ranks > 1:
                    together: Report | None = _on_ranks(args, tell, begun_s)
                else:
                    together = _on_this_rank(args, tell, live, begun_s)
        except Interrupted as error:
            interrupted, together = error, error.report
        if together is None:
            return 0

        from graphdoctor.check.selection import selected
        from graphdoctor.reporters.look import Look

        report = selected(together, project)
        look = look_of(args)
        save_reports(args, report, Look(base=os.getcwd()))
        show_or_save(
            args,
            json=lambda: written_as("json", report, look),
            page=lambda: live.rest_of(report) if live else written_as("terminal", report, look),
        )
        if interrupted is not None:
            missing = [row.strategy for row in report.strategies if row.status == "timed-out"]
            print(
                f"graphdoctor: interrupted: not tried: {', '.join(missing) or 'strategies'};"
                " run the command again to try them",
                file=sys.stderr,
            )
            return interrupted.exit_code
        if args.blame:
            _blame(args, report)
        _check_judged(args, report)
        return 0


def _add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=at_least(1),
        default=1,
        metavar="N",
        help="run the step on N ranks, each in its own process on this machine with its own GPU or"
        " emulated GPU",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=DEFAULT_LIMIT_S,
        metavar="TIME",
        help="how long several ranks may take, which --ranks or a launcher starts: 600s (the default),"
        " 2m ...",
    )


def _live_page(args: argparse.Namespace, project: Project) -> LivePage | None:
    """The page that is shown while strategies are tried, if there is one terminal for it and for progress."""
    from graphdoctor.device.processes.launched import rank_and_count

    if not (sys.stdout.isatty() and sys.stderr.isatty()) or args.json == STDOUT:
        return None
    if args.ranks > 1 or rank_and_count()[1] > 1:
        return None
    from graphdoctor.cli.live import LivePage

    return LivePage(project, look_of(args))


def _on_this_rank(
    args: argparse.Namespace, tell: ProgressLine, live: LivePage | None, begun_s: float
) -> Report | None:
    from graphdoctor.device.processes.launched import take_own_gpu
    from graphdoctor.device.processes.overdue import ended_after
    from graphdoctor.device.processes.thrift import collecting_rarely

    with collecting_rarely():
        from graphdoctor.pipeline import analyze_target
    if args.device != "emulated":
        take_own_gpu()
    with ended_after(args.time_limit, begun_s=begun_s):
        show = partial(live.show, progress=tell) if live is not None else lambda _: None
        report = analyze_target(args.target, _options(args), tell, show)
        return _of_all_ranks(report, args.time_limit)


def _on_ranks(args: argparse.Namespace, tell: Callable[[str], None], begun_s: float) -> Report:
    """The report of ranks that are started here. Raises the error of the rank that failed."""
    if args.trace_dir is not None:
        raise UsageError("--ranks writes no traces: leave --trace-dir out")
    tell(f"analyzing on {args.ranks} ranks")
    from graphdoctor.check.on_ranks import report_of_ranks
    from graphdoctor.check.run_targets import Job

    root, options = str(Path.cwd()), _options(args)
    job = Job(root=root, spec=args.target, options=options, ranks=args.ranks)
    return report_of_ranks(job, time_limit_s=args.time_limit, begun_s=begun_s)


def _of_all_ranks(report: Report, time_limit_s: float) -> Report | None:
    """The report of a launcher's ranks, where one started this process; None where rank 0 shows it."""
    from graphdoctor.device.processes.launched import gathered, rank_and_count

    if rank_and_count()[1] == 1:
        return report
    from graphdoctor.diagnose.all_ranks import merged
    from graphdoctor.reporters.plain_json import parsed, written
    from graphdoctor.values.report import Report

    texts = gathered(written(report), limit_s=time_limit_s)
    if texts is None:
        return None
    return merged([parsed(text, Report, name=f"rank {rank}") for rank, text in enumerate(texts)])


def _blame(args: argparse.Namespace, report: Report) -> None:
    """Write the smallest script that shows a wrong replay of the whole step."""
    from graphdoctor.reporters.analysis.captures import is_wrong

    if not any(each.is_whole_step and is_wrong(each) for each in report.captures):
        print("graphdoctor: blame: no replay of the whole step was wrong", file=sys.stderr)
        return
    from graphdoctor.pipeline.blamed import blame_target
    from graphdoctor.reporters.files import save

    with running(args) as tell:
        script = blame_target(args.target, _options(args), tell)
    if script is not None:
        save(script, Path(args.blame))
    found = f"written to {args.blame}" if script is not None else "no script shows the wrong replay"
    print(f"graphdoctor: blame: {found}", file=sys.stderr)


def _check_judged(args: argparse.Namespace, report: Report) -> None:
    """Strategies that were asked for, and none of which could be judged, are no success."""
    rows = report.strategies
    if args.strategies and rows and all(row.status == "timed-out" for row in rows):
        raise CannotDoItHere(
            f"none of the strategies could be judged within {args.budget:g} s: {rows[0].reason};"
            " give them more time with --budget"
        )


def _options(args: argparse.Namespace) -> AnalyzeOptions:
    from graphdoctor.values.options import AnalyzeOptions

    return AnalyzeOptions(
        mode=args.mode,
        device=args.device,
        iterations=args.iterations,
        inputs=tuple(args.input),
        gpu=args.gpu,
        host=args.host,
        trace_dir=args.trace_dir,
        strategies=args.strategies,
        budget_s=args.budget,
        fixed_inputs=args.inputs == "fixed",
        values=args.values,
        times_stages=True,
    )
