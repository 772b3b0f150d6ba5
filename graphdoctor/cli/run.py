"""`graphdoctor run train.py` runs a program without changes, and diagnoses each of its steps where it stands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.arguments import (
    DEFAULT_LIMIT_S,
    add_machine_arguments,
    add_program_arguments,
    add_settings_arguments,
    at_least,
    names,
    program_of,
    seconds,
)
from graphdoctor.cli.output import (
    STDOUT,
    add_json_argument,
    add_page_arguments,
    add_report_argument,
    check_json_writable,
    check_reports_writable,
    look_of,
    of_rank,
    progress,
    save_reports,
    show,
)
from graphdoctor.values.errors import CannotDoItHere, UsageError

if TYPE_CHECKING:
    from graphdoctor.reporters.look import Look
    from graphdoctor.target.program.launch import Program
    from graphdoctor.values.options import RunOptions
    from graphdoctor.values.program import Exactness, ProgramReport

FEWEST_STEPS = 2
DEFAULT_BUDGET_S = 60.0
DEFAULT_RERUN_S = 120.0


class RunCommand:
    """Run a program as it is, and diagnose the steps that it repeats.

      graphdoctor run train.py -- --epochs 1
      graphdoctor run -m mypackage.train -- --config small

    Training steps, calls of models and decode steps are found while the program
    runs, and diagnosed on its own batches; the program goes on as if nothing had
    happened. Without a GPU, one is emulated, and the program ends once its steps
    are diagnosed. Its output stays its own: the report goes to stderr.
    """

    name = "run"
    help = "run a program and diagnose its steps"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_program_arguments(parser)
        add = parser.add_argument
        add(
            "--device",
            choices=("auto", "cuda", "emulated", "cpu-as-is"),
            default="auto",
            help="auto (the default) takes a GPU where there is one, and else emulates one;"
            " cpu-as-is leaves the program on the CPU, and diagnoses its steps as if they were on"
            " a GPU",
        )
        add_machine_arguments(parser)
        add("--after", type=at_least(0), default=3, metavar="N",
            help="diagnose a kind of step after so many of it (default: 3)")  # fmt: skip
        add("--steps", type=at_least(FEWEST_STEPS), default=4, metavar="N",
            help="how many steps are compared with each other (default: 4)")  # fmt: skip
        add("--step", default="", metavar="NAME",
            help="the calls of this function are the steps, such as Model.training_step")  # fmt: skip
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument("--stop", action="store_true", default=None,
                          help="end the program once its steps are diagnosed (the default without a GPU)")  # fmt: skip
        ends.add_argument("--to-the-end", dest="stop", action="store_false",
                          help="let the program run on (the default with a GPU)")  # fmt: skip
        add("--strategies", type=names, metavar="NAMES",
            help="ways to run a step faster to try; none tries none (default: those that fit)")  # fmt: skip
        add("--budget", type=seconds, default=DEFAULT_BUDGET_S, metavar="TIME",
            help="begin nothing that can be left out after this time of diagnosis: 60s (default), 2m ...")  # fmt: skip
        add("--time-limit", type=seconds, default=DEFAULT_LIMIT_S, metavar="TIME",
            help="how long the ranks of a launcher may diagnose a step: 600s (the default), 2m ...")  # fmt: skip
        add_json_argument(parser, "report")
        add_report_argument(parser, "ProgramReport")
        add("--diff", metavar="FILE",
            help="rerun the program with and without the proposed changes; write them as a diff if the"
            " results match and no step is slower")  # fmt: skip
        add("--rerun-limit", type=seconds, default=DEFAULT_RERUN_S, metavar="TIME",
            help="how long each rerun of --diff may take: 120s (the default), 5m ...")  # fmt: skip
        add("--allow", choices=("bitwise", "rounding"), default="rounding",
            help="what may differ with --diff: nothing (bitwise), or the rounding of sums (default)")  # fmt: skip
        add("--plain", action="store_true",
            help="write changes that use torch only: a class in the program's file replays the step, in"
            " place of graphdoctor.capture")  # fmt: skip
        add("--trace-dir", metavar="DIR",
            help="write runs for TensorBoard and Perfetto into this folder")  # fmt: skip
        add_page_arguments(parser)
        add_settings_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_json_writable(args)
        check_reports_writable(args)
        if args.diff:
            _check_diff(args)
        args.diff_as_given = args.diff
        for name in ("json", "trace_dir", "diff"):  # the program may go to another folder
            if (path := getattr(args, name)) and path != STDOUT:
                setattr(args, name, os.path.abspath(path))
        args.report = [(name, path.absolute()) for name, path in args.report]
        program = program_of(args)
        process, folder, look = os.getpid(), os.getcwd(), look_of(args, sys.stderr)
        from graphdoctor.check.settings.files import load

        with progress(sys.stderr) as tell:
            tell("importing torch")
            options = _options(args)
            project = load(Path.cwd(), overrides=args.config, isolated=args.isolated)
            with _stdout_for_json(args):
                from graphdoctor.pipeline import diagnose_program

                tell("")
                report, said = diagnose_program(program, options, tell)
        if os.getpid() != process:  # a child that the program forked
            return report.exit_code
        if said:
            print(said, file=sys.stderr)
        with progress(sys.stderr) as tell:
            report = _with_patch(report, program, options, args, folder=folder, tell=tell)

        from graphdoctor.check.selection import selected_steps

        together = _of_all_ranks(selected_steps(report, project), args)
        if together is not None:
            _show(together, args, look)
        # A program that was ended may have threads that never stop waiting for work.
        import threading

        others = [t for t in threading.enumerate() if t is not threading.main_thread()]
        if report.ending == "ended by graphdoctor" and any(not t.daemon for t in others):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(report.exit_code)
        return report.exit_code


def _check_diff(args: argparse.Namespace) -> None:
    from graphdoctor.reporters.files import check_writable

    check_writable(Path(args.diff))
    from graphdoctor.device.processes.launched import rank_and_count

    if rank_and_count()[1] > 1:
        raise UsageError(
            "--diff runs a program in one process, and a launcher started several of them"
        )
    if args.device == "cpu-as-is":
        raise UsageError(
            "--diff runs the program on a device, and --device cpu-as-is leaves it on the CPU: leave one of"
            " them out"
        )


def _with_patch(
    report: ProgramReport,
    program: Program,
    options: RunOptions,
    args: argparse.Namespace,
    *,
    folder: str,
    tell: Callable[[str], None],
) -> ProgramReport:
    """What to change, tried where a diff is wanted; its file is written where there is something to write."""
    from graphdoctor.strategies.patch.made import tried, with_patch

    allowed: Exactness = args.allow
    report, choice = with_patch(report, folder, allowed, is_plain=args.plain)
    if not args.diff or choice.is_empty:
        return report
    from graphdoctor.reporters.files import save
    from graphdoctor.strategies.patch.rerun import MOST_STEPS, MOST_STEPS_ON_GPU, Task

    chosen = options.analyze
    is_on_gpu = report.machine is not None and report.machine.device == "cuda"
    most = MOST_STEPS_ON_GPU if is_on_gpu else MOST_STEPS
    task = Task(program, folder, chosen.device, chosen.gpu, most)
    report = tried(report, choice, task, time_limit_s=args.rerun_limit, progress=tell)
    if report.patch is not None and report.patch.diff:
        save(report.patch.diff, Path(args.diff))
    return report


def _of_all_ranks(report: ProgramReport, args: argparse.Namespace) -> ProgramReport | None:
    """The report of a launcher's ranks, which each save their own; None where rank 0 shows it."""
    from graphdoctor.device.processes.launched import gathered, rank_and_count

    rank, count = rank_and_count()
    if count == 1:
        return report
    from graphdoctor.diagnose.all_ranks import merged_programs
    from graphdoctor.reporters.files import save
    from graphdoctor.reporters.plain_json import parsed, written
    from graphdoctor.values.program import ProgramReport

    text = written(report)
    if args.json and args.json != STDOUT:
        save(text, of_rank(Path(args.json), rank))
    try:
        texts = gathered(text)
    except (CannotDoItHere, RuntimeError) as error:  # torch's errors of connections are such
        import msgspec

        reason = str(error).splitlines()[0]
        note = f"This is rank {rank} alone, since the other ranks' reports did not come: {reason}"
        if rank:
            args.report = []  # these files are rank 0's, and so is the joined JSON
            args.json = STDOUT if args.json == STDOUT else None
        return msgspec.structs.replace(report, notes=(*report.notes, note))
    return (
        None
        if texts is None
        else merged_programs(
            [parsed(text, ProgramReport, name=f"rank {rank}") for rank, text in enumerate(texts)]
        )
    )


def _show(report: ProgramReport, args: argparse.Namespace, look: Look) -> None:
    from graphdoctor.reporters import program_page
    from graphdoctor.reporters.files import save
    from graphdoctor.reporters.look import Look
    from graphdoctor.reporters.plain_json import written

    save_reports(args, report, Look(base=look.base))
    if args.json == STDOUT:
        show(written(report))
        return
    if args.json:
        save(written(report), Path(args.json))
    sys.stdout.flush()
    shown = program_page.render(report, look, diff_file=args.diff_as_given or "")
    print(shown, end="", file=sys.stderr)


@contextmanager
def _stdout_for_json(args: argparse.Namespace) -> Iterator[None]:
    """With `--json -`, what the program prints goes to stderr."""
    if args.json != STDOUT:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _options(args: argparse.Namespace) -> RunOptions:
    from graphdoctor.values.options import AnalyzeOptions, Bounds, RunOptions

    as_is = args.device == "cpu-as-is"
    analyze = AnalyzeOptions(
        device="auto" if as_is else args.device,
        iterations=args.steps,
        gpu=args.gpu,
        host=args.host,
        trace_dir=args.trace_dir,
        strategies=args.strategies,
        budget_s=args.budget,
        times_stages=True,
    )
    ends = args.stop
    if ends is None:
        import torch

        ends = as_is or args.device == "emulated" or not torch.cuda.is_available()
    return RunOptions(
        analyze,
        Bounds(args.after, args.steps, ends=ends, only=args.step),
        is_left_on_cpu=as_is,
        time_limit_s=args.time_limit,
    )
