"""A program as it is and changed run in turns until they show which is faster; what no graph shortens is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from graphdoctor.strategies.patch import made
from graphdoctor.strategies.patch.rerun import Run, Task
from graphdoctor.target.program.launch import Program
from graphdoctor.values.program import Patch
from tests.strategies.patch.test_capture_step import PROGRAMS, step_in
from tests.support.reports import of_program

RAN = Run("loss 1.5\n", True, steps=400, replays=390, weights=())
TIMES_US = 100.0, 140.0, 120.0


def tried_with(
    times_us: tuple[float, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Patch, list[bool]]:
    """What comes of a change whose runs take these times, in a circle, and which runs there were."""
    ran: list[bool] = []

    @contextmanager
    def reruns(time_limit_s: float) -> Iterator[Callable[[Task], Run]]:
        def run(task: Task) -> Run:
            is_changed = bool(task.sources)
            before = ran.count(is_changed)
            ran.append(is_changed)
            times = times_us if is_changed else TIMES_US
            return replace(RAN, step_us=times[before % len(times)])

        yield run

    monkeypatch.setattr(made, "reruns", reruns)
    step = step_in(folder / "train.py", PROGRAMS["a loop that reads its loss in the middle"])
    report, choice = made.with_patch(of_program(step), str(folder))
    task = Task(Program(str(folder / "train.py")), str(folder), "cuda", "h100", 400)
    found = made.tried(report, choice, task, time_limit_s=60.0, progress=lambda doing: None)
    assert found.patch is not None
    return found.patch, ran


def test_three_runs_of_each_are_enough_where_they_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, ran = tried_with((50.0, 60.0), tmp_path, monkeypatch)
    assert patch.status == "same results" and patch.is_measured
    assert ran == [False, True] * 3
    patch, ran = tried_with((150.0, 160.0), tmp_path, monkeypatch)
    assert patch.status == "left out" and "is slower" in patch.tried
    assert ran == [False, True] * 3


def test_runs_that_do_not_decide_are_repeated_and_what_else_takes_time_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, ran = tried_with((101.0, 141.0, 121.0), tmp_path, monkeypatch)
    assert ran == [False, True] * 7
    assert patch.status == "left out"
    assert "The change was not shown to be faster: a step takes 120 µs as it is" in patch.tried
    assert "7 runs of each in turns" in patch.tried
    assert "The program waits for its DataLoaders for 25% of its time" in patch.tried
