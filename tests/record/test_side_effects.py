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
    rows, database = csv.writer(log), sqlite3.connect(folder / "database")
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
        "file": (lambda number: log.write(f"{number}\n"), lines),
        "print": (lambda number: print(number, file=log), lines),
        "pickle": (lambda number: pickle.dump(number, log.buffer), lines),
        "rows": (lambda number: rows.writerow([number]), lines),
        "descriptor": (lambda number: os.write(log.fileno(), b"1"), lines),
        "database": (
            lambda number: database.execute("insert into seen values (?)", (number,)),
            database.execute("select * from seen").fetchall,
        ),
        "socket": (lambda number: one.send(b"1"), received),
    }
    return ways[kind]


@pytest.mark.parametrize(
    "kind",
    ["file", "print", "pickle", "rows", "descriptor", "database", "socket"],
)
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
