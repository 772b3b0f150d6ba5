"""Later steps that are tried, and what they would write, send or hand on: none of it happens."""

from __future__ import annotations

import contextlib
import csv
import os
import pickle
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)


class Counting:
    """How often a step ran."""

    def __init__(self) -> None:
        self.calls = 0


def written(kind: str, folder: Path) -> tuple[Callable[[int], object], Callable[[], object]]:
    """Writes a number to something that is open, and what has come there."""
    log = (folder / "log").open("w", buffering=1)
    database = sqlite3.connect(folder / "database")
    database.execute("create table seen (number)")
    one, other = socket.socketpair()
    other.setblocking(False)

    def received() -> bytes:
        try:
            return other.recv(100)
        except BlockingIOError:
            return b""

    def lines() -> str:
        return (folder / "log").read_text()

    ways: dict[str, tuple[Callable[[int], object], Callable[[], object]]] = {
        "pickle": (lambda number: pickle.dump(number, log.buffer), lines),
        "descriptor": (lambda number: os.write(log.fileno(), b"1"), lines),
        "database": (
            lambda number: database.execute("insert into seen values (?)", (number,)),
            database.execute("select * from seen").fetchall,
        ),
        "socket": (lambda number: one.send(b"1"), received),
    }
    return ways[kind]


@pytest.mark.parametrize("kind", ["file", "print", "rows"])
@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_log_that_is_open_is_no_other_work_and_is_as_long_as_before(
    kind: str, mode: str, tmp_path: Path
) -> None:
    state, file = Counting(), tmp_path / "log"
    with file.open(mode) as log:
        log.write("begun\n")
        ways: dict[str, Callable[[int], object]] = {
            "file": lambda number: log.write(f"{number}\n"),
            "print": lambda number: print(number, file=log),
            "rows": lambda number: csv.writer(log).writerow([number]),
        }

        def step(x: torch.Tensor) -> torch.Tensor:
            state.calls += 1
            calls = state.calls
            if not calls % 50:
                ways[kind](calls)
            return LINEAR(x)

        assert reported(step).verdict == "safe"
        log.write("ended\n")
    assert file.read_text() == "begun\nended\n"


@pytest.mark.parametrize("mode", ["r+", "w"])
def test_what_is_in_a_file_is_not_written_over(mode: str, tmp_path: Path) -> None:
    state, path = Counting(), tmp_path / "status"
    path.write_text("step 0, and a long history\n")
    with path.open(mode) as status:
        if mode == "w":
            status.write("step 0, and a long history\n")
            status.flush()
            status.seek(0)

        def step(x: torch.Tensor) -> torch.Tensor:
            state.calls += 1
            calls = state.calls
            if not calls % 50:
                status.write(f"step {calls}")
            return LINEAR(x)

        reported(step)
    assert path.read_text() == "step 0, and a long history\n"


def test_the_line_that_raises_in_a_later_step_is_named() -> None:
    state, rates = Counting(), [0.1] * 20

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        return LINEAR(x) if rates[state.calls] else x

    (found,) = (one for one in reported(step).findings if one.rule == "GD217")
    assert found.location is not None and found.location.function == "step"


@pytest.mark.parametrize("kind", ["pickle", "descriptor", "database", "socket"])
def test_what_a_later_step_would_write_to_what_is_open_is_not(kind: str, tmp_path: Path) -> None:
    state = Counting()
    write, read = written(kind, tmp_path)

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        calls = state.calls
        if not calls % 50:
            write(calls)
        return LINEAR(x)

    assert "GD217" in {finding.rule for finding in reported(step).findings}
    assert not read()


def test_who_catches_the_end_of_a_later_step_writes_nothing_either(tmp_path: Path) -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        calls = state.calls
        if not calls % 50:
            for name in ("first", "second"):
                with contextlib.suppress(BaseException):
                    (tmp_path / name).mkdir()
        return LINEAR(x)

    assert "GD217" in {finding.rule for finding in reported(step).findings}
    assert not list(tmp_path.iterdir())


def test_a_progress_bar_is_no_other_work(capsys: pytest.CaptureFixture[str]) -> None:
    state, bar = Counting(), sys.stderr  # as tqdm keeps it

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        calls = state.calls
        if not calls % 50:
            bar.write("half way")
            time.sleep(0 if calls < 1000 else 1000)
        return LINEAR(x)

    assert reported(step).verdict == "safe"
