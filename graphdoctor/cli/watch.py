"""`graphdoctor watch serve.py` counts what a program that keeps running does with its GPU, at little cost."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from graphdoctor.cli.arguments import add_program_arguments, program_of, seconds
from graphdoctor.cli.output import add_color_argument, check_json_writable, look_of, of_rank, say
from graphdoctor.values.errors import GraphDoctorError

if TYPE_CHECKING:
    from graphdoctor.reporters.look import Look
    from graphdoctor.values.watched import WatchReport

DEFAULT_EVERY_S = 30.0


class WatchCommand:
    """Watch a program that keeps running: what it does with its GPU.

      graphdoctor watch serve.py -- --port 8000
      graphdoctor watch --every 5m --json watch.json -m mypackage.serve

    Graphs, captures, replays, allocations, waits, recompilations and eager calls
    of captured models are counted. --cupti also samples launches, syncs and
    copies, which slows each launch down. A line on stderr says what happened
    since the one before; the report comes at the end, and whenever SIGUSR1 is
    sent. The program runs on its own device and ends with its own exit code.
    Child processes are not watched.
    """

    name = "watch"
    help = "count what a running program does with its GPU, at little cost"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_program_arguments(parser)
        add = parser.add_argument
        add("--every", type=seconds, default=DEFAULT_EVERY_S, metavar="TIME",
            help="how often to write a line: 30s (the default), 5m ...")  # fmt: skip
        add("--cupti", action="store_true",
            help="sample CUDA's calls too, which slows each launch and replay")  # fmt: skip
        add("--json", metavar="FILE", help="save each report there too, over the one before")
        add_color_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_json_writable(args)
        program, process = program_of(args), os.getpid()
        from graphdoctor.measure.watch.watcher import device, rank, watch_program
        from graphdoctor.reporters import watch_page

        # The program may change directory, and put another stream in stderr's place.
        json = of_rank(Path(args.json).absolute(), rank()) if args.json else None
        out = _Output(sys.stderr, json, look_of(args, sys.stderr))
        if device() == "none":
            out.say(watch_page.no_device_line())
        report, said = watch_program(
            program,
            args.every,
            lambda now, before: out.say(watch_page.line(now, before)),
            out.write,
            with_cupti=args.cupti and device() != "none",
        )
        if os.getpid() != process:  # a child that the program forked
            return report.exit_code or 0
        if said:
            out.say(f"{said}\n")
        out.write(report)
        return report.exit_code or 0


class _Output:
    """Where lines and reports go, which is decided before the program runs."""

    def __init__(self, stream: TextIO, json: Path | None, look: Look) -> None:
        self._stream, self._json, self._look = stream, json, look

    def write(self, report: WatchReport) -> None:
        from graphdoctor.reporters import watch_page
        from graphdoctor.reporters.files import save
        from graphdoctor.reporters.plain_json import written

        try:
            if self._json is not None:
                save(written(report), self._json)
        except GraphDoctorError as error:  # a full disk is no reason to end what has run for days
            self.say(f"graphdoctor: error: {error}\n")
        self.say(watch_page.render(report, self._look))

    def say(self, text: str) -> None:
        """Write it, if the program left the stream open."""
        say(self._stream, text)
