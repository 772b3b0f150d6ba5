"""`graphdoctor audit serve.py` finds replays of a program that use freed memory or overwrite kept results."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.arguments import add_program_arguments, program_of
from graphdoctor.cli.output import (
    add_color_argument,
    add_report_argument,
    check_json_writable,
    check_reports_writable,
    look_of,
    of_rank,
    say,
)
from graphdoctor.values.errors import CannotDoItHere, UsageError

if TYPE_CHECKING:
    from graphdoctor.values.audited import Spacing

EXIT_FOUND = 1


class AuditCommand:
    """Run a program and check the memory of each CUDA graph before its replays.

      graphdoctor audit serve.py -- --port 8000
      graphdoctor audit --device emulated --json audit.json train.py
      graphdoctor audit --report sarif=audit.sarif train.py
      graphdoctor audit --verify auto --blame wrong.py serve.py

    Graphs of torch.cuda.graph, make_graphed_callables and torch.compile are
    checked. The page on stderr names each tensor that a replay uses at its
    captured address after it was freed, moved or rebound, each output that the
    program keeps while later replays overwrite it, each number that the program
    changes while replays use the captured one, and each new tensor that was not
    copied into the captured one. With --verify, replays are compared with an
    eager run of their operators, and the first operator that differs is named;
    --blame writes a small script that shows it. The exit code is the program's
    own; if that is 0 and anything was found, it is 1.
    """

    name = "audit"
    help = (
        "find CUDA graphs whose replays use freed memory, overwrite kept results or use old numbers"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_program_arguments(parser)
        add = parser.add_argument
        add("--device", choices=("auto", "cuda", "emulated"), default="auto",
            help="auto (the default): cuda if there is a GPU, else emulated")  # fmt: skip
        eager = parser.add_mutually_exclusive_group()
        eager.add_argument("--verify", type=_spacing, default=0, metavar="every=N",
            help="compare each graph's first replay, and each Nth after it, with an eager run; auto: as often as"
            " this takes no more than 3 %% of the time")  # fmt: skip
        eager.add_argument("--debug-eager", action="store_true",
            help="run the operators of each replay eagerly instead")  # fmt: skip
        add("--blame", metavar="FILE",
            help="write the smallest script there that shows the first wrong replay (with --verify)")  # fmt: skip
        add("--json", metavar="FILE", help="save the report there too")
        add_report_argument(parser, "AuditReport")
        add_color_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_json_writable(args)
        check_reports_writable(args)
        if args.blame and not args.verify:
            raise UsageError("--blame needs --verify, which finds the wrong replay")
        program, process = program_of(args), os.getpid()
        import torch

        from graphdoctor.device.emulated import EmulatedDevice
        from graphdoctor.measure.audit.graph_audit import audit_program
        from graphdoctor.measure.watch.watcher import rank
        from graphdoctor.reporters.files import save
        from graphdoctor.reporters.formats import page_of, written_as
        from graphdoctor.reporters.look import Look
        from graphdoctor.reporters.plain_json import written

        # The program may change directory, and put another stream in stderr's place.
        stream, look = sys.stderr, look_of(args, sys.stderr)
        json = of_rank(Path(args.json).absolute(), rank()) if args.json else None
        blame = of_rank(Path(args.blame).absolute(), rank()) if args.blame else None
        files = [(name, of_rank(path.absolute(), rank())) for name, path in args.report]
        has_gpu = torch.cuda.is_available()
        if args.device == "cuda" and not has_gpu:
            raise CannotDoItHere("--device cuda needs a GPU, and torch finds none here")
        is_emulated = args.device == "emulated" or not has_gpu
        with EmulatedDevice() if is_emulated else nullcontext():
            report, text, script = audit_program(
                program,
                verify=args.verify,
                debug_eager=args.debug_eager,
                blame=blame is not None,
            )
        if os.getpid() != process:  # a child that the program forked
            return report.exit_code
        if json is not None:
            save(written(report), json)
        if blame is not None and script is not None:
            save(script, blame)
        for name, path in files:
            save(written_as(name, report, Look(base=look.base)), path)
        if text:
            say(stream, f"{text}\n")
        say(stream, page_of(report, look))
        if blame is not None:
            found = (
                f"written to {blame}" if script is not None else "no script shows a wrong replay"
            )
            say(stream, f"blame: {found}\n")
        return report.exit_code or (EXIT_FOUND if report.has_faults else 0)


def _spacing(text: str) -> Spacing:
    if text == "auto":
        return "auto"
    name, _, number = text.partition("=")
    if name != "every" or not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"expected every=100 or auto, got {text!r}")
    return int(number)
