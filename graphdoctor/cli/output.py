"""Writes text to stdout, with or without colour, and a line of progress to stderr."""

from __future__ import annotations

import _thread
import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from graphdoctor.reporters.files import check_writable, save
from graphdoctor.reporters.formats import Kind, names_of, written_as
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible
from graphdoctor.values.spelling import meant

if TYPE_CHECKING:
    from graphdoctor.reporters.formats import Shown
    from graphdoctor.reporters.look import Look

STDOUT = "-"
_TICK_S = 1.0
PLAIN_CHARACTERS = str.maketrans("\u2500\u00b5", "-u")


class ReaderGone(Exception):
    """Whoever reads our stdout, `head` for example, has seen enough."""


def add_page_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that shows a report."""
    parser.add_argument(
        "--all", action="store_true", help="show everything: reasons, regions, code, times, machine"
    )
    parser.add_argument(
        "--frames", action="store_true", help="show every frame that led to a finding"
    )
    add_color_argument(parser)


def add_color_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (the default): color on a terminal, unless NO_COLOR is set",
    )


def add_json_argument(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--json", metavar="FILE", help=f"save the {what} too; - writes it instead of the page"
    )


class FormatAndFile:
    """An argument FORMAT=FILE, as the pair of the format's name and the path."""

    def __init__(self, formats: Sequence[str]) -> None:
        self.formats = formats

    def __call__(self, text: str) -> tuple[str, Path]:
        """Raises argparse.ArgumentTypeError, which names the formats."""
        name, equals, path = text.partition("=")
        if not equals or not path or name not in self.formats:
            hint = meant(name, self.formats) if name not in self.formats else ""
            known = ", ".join(self.formats)
            raise argparse.ArgumentTypeError(
                f"expected FORMAT=FILE, FORMAT one of {known}, got {text!r}{hint}"
            )
        return name, Path(path)


def add_report_argument(parser: argparse.ArgumentParser, kind: Kind) -> None:
    """`--report FORMAT=FILE`, as often as wanted, in the formats of this kind of report."""
    formats = names_of(kind)
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        type=FormatAndFile(formats),
        metavar="FORMAT=FILE",
        help=f"write this format ({', '.join(formats)}) to a file as well; may be repeated",
    )


def check_reports_writable(args: argparse.Namespace) -> None:
    """UsageError, before the work, where a file of --report cannot be made."""
    for _, path in args.report:
        check_writable(path)


def save_reports(args: argparse.Namespace, report: Shown, look: Look) -> None:
    """Write each file of --report. Call this before stdout is written, which may have no reader."""
    for name, path in args.report:
        save(written_as(name, report, look), path)


def show_or_save(
    args: argparse.Namespace, json: Callable[[], str], page: Callable[[], str]
) -> None:
    """The page, and the JSON where --json wants it."""
    if args.json == STDOUT:
        show(json())
        return
    if args.json:
        save(json(), Path(args.json))
    show(page())


def check_json_writable(args: argparse.Namespace) -> Path | None:
    """The file that --json names, if it names one; UsageError, before the work, where it cannot be made."""
    if not args.json or args.json == STDOUT:
        return None
    path = Path(args.json)
    check_writable(path)
    return path


def of_rank(path: Path, rank: int | None) -> Path:
    """The file of one of several processes, such as report.rank0.json."""
    return path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def look_of(args: argparse.Namespace, stream: TextIO | None = None) -> Look:
    """How a page for this call's stdout, or another stream, is to look."""
    from graphdoctor.reporters.look import look_for

    return look_for(
        stream or sys.stdout,
        color=args.color,
        show_all=getattr(args, "all", False),
        show_frames=getattr(args, "frames", False),
    )


def show(text: str) -> None:
    """Write to stdout, also where its encoding lacks a character. Raises ReaderGone, UsageError."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = (
            text.translate(PLAIN_CHARACTERS).encode(encoding, "backslashreplace").decode(encoding)
        )
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes once more when it exits; give it somewhere to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from error
        raise UsageError(f"cannot write to stdout: {error.strerror or error}") from error


def say(stream: TextIO, text: str) -> None:
    """Write to the stderr that a program began with, if the program left it open, in its encoding."""
    with suppress(OSError, ValueError):
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


@contextmanager
def progress(stream: TextIO) -> Iterator[ProgressLine]:
    """What to call with the current stage: one line that is rewritten, on a terminal only.

    The line also appears while stderr is redirected, as `graphdoctor run` does around a diagnosis.
    """
    if not stream.isatty():
        yield ProgressLine(None)
        return
    with _copy_of(stream) as terminal:
        line = ProgressLine(terminal)
        try:
            yield line
        finally:
            line.stop()
            line.show_above("")


class ProgressLine:
    """The current stage with the time since the beginning, and above it lines that are rewritten too.

    The time advances each second while there is a stage. Without a terminal nothing is shown.
    """

    def __init__(self, terminal: TextIO | None) -> None:
        self._terminal = terminal
        self._clock = time.monotonic  # a step may run with Python's clocks set an hour ahead
        self._began_s = self._clock()
        self._stage = ""
        self._above = 0  # lines
        self._lock = _thread.allocate_lock()  # for what is written and the stage
        self._ticking: _thread.LockType | None = None  # its thread ends once this is released

    def __call__(self, stage: str) -> None:
        """Replace the line; "" removes it."""
        if self._terminal is None:
            return
        with self._lock:
            self._stage = stage
            self._draw(self._terminal)
        if not stage:
            self.stop()
        elif self._ticking is None:
            self._ticking = _thread.allocate_lock()
            self._ticking.acquire()
            # Not by `threading`: the thread is none of the program's, and no device is emulated in it.
            _thread.start_new_thread(self._tick, (self._terminal, self._ticking))

    def stop(self) -> None:
        """Let the line stay as it is."""
        self._stage = ""
        if self._ticking is not None:
            self._ticking.release()
            self._ticking = None

    def _tick(self, terminal: TextIO, ticking: _thread.LockType) -> None:
        """Update the time each second, which takes microseconds: too few to change the time of a step."""
        while not ticking.acquire(timeout=_TICK_S):
            with self._lock, suppress(OSError, ValueError):
                if self._stage:
                    self._draw(terminal)

    def _draw(self, terminal: TextIO) -> None:
        minutes, seconds = divmod(int(self._clock() - self._began_s), 60)
        line = f"{minutes}:{seconds:02} {visible(self._stage)} ..." if self._stage else ""
        # The cursor goes back, so that what the model prints replaces the line instead of following it.
        back = "\r" if line else ""
        terminal.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}{back}")
        terminal.flush()

    def show_above(self, text: str) -> None:
        """Replace the lines above, as many as the terminal has room for; "" removes all that is shown."""
        if self._terminal is None:
            return
        lines = text.splitlines()[: shutil.get_terminal_size().lines - 1]
        with self._lock:
            back = f"\x1b[{self._above}A\x1b[J" if self._above else "\x1b[K"
            self._terminal.write(f"\r{back}" + "".join(f"{line}\n" for line in lines))
            self._terminal.flush()
            self._above = len(lines)


@contextmanager
def _copy_of(stream: TextIO) -> Iterator[TextIO]:
    """The same terminal by a separate descriptor, or the stream itself if it has no descriptor."""
    stream.flush()
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):
        yield stream
        return
    with open(descriptor, "w", encoding=stream.encoding, errors="backslashreplace") as copy:
        yield copy
