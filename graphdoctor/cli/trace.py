"""`graphdoctor trace FILE|DIR`: explain profiler traces, as a page and as JSON."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.output import (
    add_json_argument,
    add_page_arguments,
    add_report_argument,
    check_json_writable,
    check_reports_writable,
    look_of,
    progress,
    save_reports,
    show_or_save,
)
from graphdoctor.reporters.files import check_writable
from graphdoctor.reporters.formats import page_of
from graphdoctor.values.errors import UsageError

if TYPE_CHECKING:
    from graphdoctor.trace.explain.trace_report import TraceOptions
    from graphdoctor.trace.read.blocks import TracePath
    from graphdoctor.values.trace import FolderReport, TraceComparison, TraceReport

STDIN = "-"


class TraceCommand:
    """Say why the GPU waits in a recorded run, and what a CUDA graph would bring.

    TRACE is a file of torch.profiler's export_chrome_trace(), plain or gzip,
    an SQLite export of Nsight Systems, a folder of them, or - for standard
    input. It may be a URL (s3://, gs://, https://) or packed as xz, zst or zip.
    With a second trace, of the program after a change, it says what became
    faster and slower.
    Needs no torch.
    """

    name = "trace"
    help = "explain a profiler trace"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("trace", metavar="TRACE", type=_place, help="a trace file, or a folder of them")
        add(
            "after",
            metavar="AFTER",
            type=_place,
            nargs="?",
            help="a trace to compare the first with",
        )
        add("--step", type=int, metavar="N", help="look at ProfilerStep#N only")
        add(
            "--wall-ms",
            type=_positive,
            metavar="X",
            help="how long a step takes without the profiler, which slows the host",
        )
        add(
            "--gpu",
            metavar="NAME",
            help="take the costs of graphs from this GPU (default: the trace's)",
        )
        add_json_argument(parser, "report")
        add_report_argument(parser, "TraceReport")
        add(
            "--annotate",
            metavar="FILE",
            type=Path,
            help="save a copy of the trace (gzip) that shows in Perfetto why the GPU waits",
        )
        add(
            "--max-memory",
            type=_positive,
            metavar="MB",
            help="stop with a sentence where a trace takes more (default: half of the machine's)",
        )
        add(
            "--executor",
            metavar="URL",
            help="read the traces of a folder on a cluster: dask://HOST:8786",
        )
        add_page_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        saved_to = check_json_writable(args)
        check_reports_writable(args)
        if args.annotate is not None:
            check_writable(args.annotate)
        for source in (args.trace, args.after):
            if source is not None:
                _check_outputs(source, [("--json", saved_to), ("--annotate", args.annotate),
                                        *(("--report", path) for _, path in args.report)])  # fmt: skip
        report = _explain(args)

        from graphdoctor.reporters.look import Look
        from graphdoctor.reporters.plain_json import written

        save_reports(args, report, Look(base=os.getcwd()))
        show_or_save(
            args, json=lambda: written(report), page=lambda: page_of(report, look_of(args))
        )
        return 0


def _explain(args: argparse.Namespace) -> TraceReport | FolderReport | TraceComparison:
    from graphdoctor.trace.annotate import annotate, notes_of_gaps
    from graphdoctor.trace.explain.folder import cluster, explain_folder, process_pool
    from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
    from graphdoctor.trace.read.file import read_trace

    path: TracePath = args.trace
    options = TraceOptions(
        step=args.step,
        wall_us=args.wall_ms * 1e3 if args.wall_ms is not None else None,
        gpu=args.gpu,
    )
    if str(path) != STDIN and not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    most_bytes = int(args.max_memory * 2**20) if args.max_memory else _half_of_the_memory()
    if args.after is not None:
        return _compare(args, options, most_bytes)
    with progress(sys.stderr) as tell:
        if path.is_dir():
            if args.annotate is not None:
                raise UsageError(f"--annotate is for one trace, and {path} is a folder")
            if args.executor is None:
                with process_pool(path, most_bytes) as pool:
                    return explain_folder(path, options, tell, most_bytes, pool)
            # Its workers have other working folders, and other memory.
            path = path.absolute() if isinstance(path, Path) else path
            most_bytes = int(args.max_memory * 2**20) if args.max_memory else None
            tell(f"connecting to {args.executor}")
            with cluster(args.executor) as workers:
                return explain_folder(path, options, tell, most_bytes, workers)
        if args.executor is not None:
            raise UsageError(f"--executor is for a folder of traces, and {path} is none")
        tell(f"reading {path.name}")
        if args.annotate is not None and (str(path) == STDIN or path.is_fifo()):
            raise UsageError("--annotate reads the trace twice, which a pipe cannot be")
        trace = read_trace(path, most_bytes=most_bytes)
        if args.annotate is not None and trace.about.writer != "torch":
            raise UsageError("--annotate copies a trace of torch.profiler, and this is none")
        tell("explaining")
        report = explain_trace(trace, path, options)
        if args.annotate is not None:
            tell("annotating")
            annotate(path, args.annotate, notes_of_gaps(trace, options.step), trace.threads)
        return report


def _compare(
    args: argparse.Namespace, options: TraceOptions, most_bytes: int | None
) -> TraceComparison:
    from dataclasses import replace

    from graphdoctor.trace.explain.before_after import EVERY_ROW, compare_traces
    from graphdoctor.trace.explain.trace_report import explain_trace
    from graphdoctor.trace.read.file import read_trace

    if args.annotate is not None or args.wall_ms is not None:
        raise UsageError("--annotate and --wall-ms are for one trace, and two are to be compared")
    if args.executor is not None:
        raise UsageError("--executor is for a folder of traces, and two are to be compared")
    reports = []
    with progress(sys.stderr) as tell:
        for path in (args.trace, args.after):
            if path.is_dir() or not path.exists():
                raise UsageError(f"{path} is no file: two trace files can be compared")
            tell(f"reading {path.name}")
            trace = read_trace(path, most_bytes=most_bytes)
            reports.append(explain_trace(trace, path, replace(options, rows=EVERY_ROW)))
    return compare_traces(*reports)


def _check_outputs(source: TracePath, outputs: Sequence[tuple[str, Path | None]]) -> None:
    """Refuse to write over what is read, under whatever name, or to write two things into one file."""
    wanted = [(option, path) for option, path in outputs if path is not None]
    for option, path in wanted:
        if (
            not isinstance(source, Path)
            or str(source) == STDIN
            or not (path.exists() and source.exists())
        ):
            continue
        if path.samefile(source) or (source.is_dir() and _is_read_from(source, path)):
            raise UsageError(f"{option} {path} is a trace that is read: give another name")
    if len({path.resolve() for _, path in wanted}) < len(wanted):
        names = " and ".join(dict.fromkeys(option for option, _ in wanted))
        raise UsageError(f"{names} name the same file")


def _is_read_from(folder: Path, path: Path) -> bool:
    from graphdoctor.trace.explain.folder import trace_files

    return any(path.samefile(str(file)) for file in trace_files(folder))


def _half_of_the_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _place(text: str) -> TracePath:
    from graphdoctor.trace.read.blocks import place

    return place(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value
