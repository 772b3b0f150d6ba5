"""A program run as it is, under a watcher -> its report, and what Python would have written to stderr."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from graphdoctor.measure.watch.profiler import prepare_environment
from graphdoctor.measure.watch.signals import SharedSignals
from graphdoctor.measure.watch.watcher import Tell, Watcher
from graphdoctor.target.program.launch import Program, run_program
from graphdoctor.values.watched import WatchReport

_LAST_WORD_S = 5.0


def watch_program(
    program: Program,
    every_s: float,
    tell: Tell,
    write: Callable[[WatchReport], None],
    *,
    with_cupti: bool = False,
) -> tuple[WatchReport, str]:
    """Run it to its end. `write` gets a report on SIGUSR1, and before SIGTERM ends the program.

    Raises UsageError where there is no such program. In a child that the program forked it returns
    as the program does, and the report is nobody's.
    """
    if with_cupti:
        prepare_environment()
    watcher = Watcher(program.command, every_s, tell, write, with_cupti=with_cupti)
    signals = SharedSignals(
        {
            signal.SIGUSR1: lambda: watcher.ask("report"),
            signal.SIGTERM: lambda: watcher.ask_and_wait("terminated", _LAST_WORD_S),
        },
        ends=frozenset({signal.SIGTERM}),
    )
    os.register_at_fork(after_in_child=signals.off)
    with signals.on(), watcher.on():
        ended = run_program(program, lambda: False)
    return watcher.report(ended.ending, ended.exit_code), ended.text
