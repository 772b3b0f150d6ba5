"""What the command line writes where: colours, encodings, readers that leave, and progress."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from graphdoctor.cli.output import progress
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.target.program.quiet import quiet
from tests.support.reports import PARTLY_SAFE


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(written_as("json", PARTLY_SAFE, Look()), encoding="utf-8")
    return path


def run_alone(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "graphdoctor", *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
    )


def test_piped_page_is_plain_whatever_the_terminal(saved: Path) -> None:
    piped = run_alone("report", str(saved), TERM="xterm-256color", COLORTERM="truecolor")
    assert piped.returncode == 0
    assert "\x1b" not in piped.stdout
    assert max(map(len, piped.stdout.splitlines())) <= 80


def test_color_always_colours_a_pipe_and_never_wins_over_the_environment(saved: Path) -> None:
    assert "\x1b[" in run_alone("report", str(saved), "--color", "always", NO_COLOR="1").stdout
    never = run_alone("report", str(saved), "--color", "never", FORCE_COLOR="1")
    assert "\x1b" not in never.stdout
    assert "\x1b[" in run_alone("report", str(saved), FORCE_COLOR="1", TERM="xterm").stdout
    both = run_alone("report", str(saved), FORCE_COLOR="1", NO_COLOR="1", TERM="xterm")
    assert "\x1b" not in both.stdout


def test_encoding_without_line_characters_gets_plain_ones(saved: Path) -> None:
    ascii_only = run_alone("report", "--all", str(saved), PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0
    assert ascii_only.stdout.isascii()
    assert "What can be captured -----" in ascii_only.stdout
    assert "180 us (150 to 260 us)" in ascii_only.stdout


def test_reader_that_stops_early_is_no_failure(saved: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "graphdoctor", "report", str(saved)],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk_is_one_sentence(saved: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "graphdoctor", "report", str(saved)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    sentence = "graphdoctor: error: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, sentence)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_with_the_time_taken_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = _Terminal()
    clock = iter([100.0, 165.5])
    monkeypatch.setattr("graphdoctor.cli.output.time.monotonic", lambda: next(clock))
    with progress(terminal) as tell:
        tell("recording \x1b[31mnet\nwork")
        assert terminal.getvalue() == "\r\x1b[K1:05 recording \\x1b[31mnet\\nwork ...\r"
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_time_of_a_stage_advances_until_the_stage_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphdoctor.cli.output._TICK_S", 0.01)
    clock = count(100.0)
    monkeypatch.setattr("graphdoctor.cli.output.time.monotonic", lambda: next(clock))
    terminal, threads = _Terminal(), threading.active_count()
    with progress(terminal) as tell:
        tell("recording")
        give_up_s = time.perf_counter() + 20.0
        while "0:04 recording" not in terminal.getvalue() and time.perf_counter() < give_up_s:
            time.sleep(0.01)
        assert "\r\x1b[K0:01 recording ...\r\r\x1b[K0:02 recording ...\r" in terminal.getvalue()
        assert threading.active_count() == threads  # a program counts its own
        tell("")
        shown = terminal.getvalue()
        time.sleep(0.1)
        assert terminal.getvalue() == shown


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_progress_is_seen_while_stderr_is_muted(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.openpty()
    with open(writing, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress(sys.stderr) as tell, quiet():
            print("what the step prints", file=sys.stderr)
            tell("recording")
            tell("")
    seen = b""
    with suppress(OSError):  # Linux raises at the end
        while part := os.read(reading, 1000):
            seen += part
    os.close(reading)
    assert seen.decode() == "\r\x1b[K0:00 recording ...\r\r\x1b[K\r\x1b[K"


def test_progress_is_silent_elsewhere() -> None:
    log = io.StringIO()
    with progress(log) as tell:
        tell("recording")
    assert log.getvalue() == ""
