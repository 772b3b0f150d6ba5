"""A program that differs from itself is compared once more with torch's deterministic algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphdoctor.strategies.patch import made
from graphdoctor.strategies.patch.rerun import Run, Task, reruns
from graphdoctor.target.program.launch import Program
from graphdoctor.values.program import Patch
from tests.strategies.patch.test_capture_step import PROGRAMS, step_in
from tests.support.reports import of_program

RAN = Run("loss 1.5\n", True, steps=400, replays=390, weights=(), step_us=100.0)


def tried_with(
    printed: Callable[[Task, int], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: tuple[torch.Tensor, ...] = (),
) -> tuple[Patch, list[Task]]:
    """What comes of a change whose runs print these numbers, and which runs there were."""
    ran: list[Task] = []

    @contextmanager
    def fake_reruns(time_limit_s: float) -> Iterator[Callable[[Task], Run]]:
        def run(task: Task) -> Run:
            ran.append(task)
            step_us = 50.0 if task.sources else 100.0
            line = f"loss {printed(task, len(ran))}\n"
            return replace(RAN, printed=line, weights=weights, step_us=step_us)

        yield run

    monkeypatch.setattr(made, "reruns", fake_reruns)
    step = step_in(folder / "train.py", PROGRAMS["a loop that reads its loss in the middle"])
    report, choice = made.with_patch(of_program(step), str(folder))
    task = Task(Program(str(folder / "train.py")), str(folder), "cuda", "h100", 400)
    found = made.tried(report, choice, task, time_limit_s=60.0, progress=lambda doing: None)
    assert found.patch is not None
    return found.patch, ran


def noisy(task: Task, number: int) -> str:
    """As it is the program differs from itself by a little, and the changed one by more."""
    if task.in_one_order:
        return "1.5"
    return f"{1.5 + number * (0.1 if task.sources else 0.001):.4f}"


def test_a_noisy_program_is_compared_where_kernels_add_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, ran = tried_with(noisy, tmp_path, monkeypatch)
    assert patch.status == "same results", patch.tried
    assert patch.tried.startswith("with deterministic algorithms and capturable optimizers in both")
    in_one_order = [task for task in ran if task.in_one_order]
    assert [bool(task.sources) for task in in_one_order] == [False, True]
    assert in_one_order[0].optimizers == "captured"
    assert not any(task.in_one_order for task in ran[-4:])  # what is timed


def test_a_number_that_differs_in_two_runs_with_equal_weights_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HobbitLong/SupContrast: "BT 0.073 (0.104)" is the time of a batch."""
    weights = (torch.ones(2),)

    def timed(task: Task, number: int) -> str:
        return f"{1.5} BT {9.0 if task.sources else number * 0.001:.3f}"

    patch, ran = tried_with(timed, tmp_path, monkeypatch, weights)
    assert patch.status == "same results", patch.tried
    assert "printed output is identical (1 line, timings ignored); its 1 weight" in patch.tried
    assert not any(task.in_one_order or task.optimizers == "nudged" for task in ran)

    def other_loss(task: Task, number: int) -> str:
        return f"{1.9 if task.sources else 1.5} BT {number * 0.001:.3f}"

    patch, _ = tried_with(other_loss, tmp_path, monkeypatch, weights)
    assert patch.status != "same results"


def test_a_program_in_which_rounding_grows_is_compared_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(task: Task, number: int) -> str:
        """Any two runs differ by as much as the loss, and the changed one by no more."""
        return "1.5" if task.in_one_order else f"{1.5 + number * 7 % 5:.4f}"

    patch, _ = tried_with(printed, tmp_path, monkeypatch)
    assert patch.status == "same results", patch.tried
    assert patch.tried.startswith("with deterministic algorithms and capturable optimizers in both")


def test_a_program_in_which_rounding_stays_small_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, ran = tried_with(lambda _, number: f"{1.5 + number * 1e-4:.4f}", tmp_path, monkeypatch)
    assert patch.status == "same results", patch.tried
    assert not any(task.in_one_order for task in ran)


def test_a_change_that_differs_there_too_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(task: Task, number: int) -> str:
        return "1.9" if task.in_one_order and task.sources else noisy(task, number)

    patch, _ = tried_with(printed, tmp_path, monkeypatch)
    assert patch.status == "left out"
    assert "deterministic" not in patch.tried


def test_a_program_that_repeats_itself_is_not_run_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(task: Task, number: int) -> str:
        return "1.9" if task.sources and not task.in_one_order else "1.5"

    patch, ran = tried_with(printed, tmp_path, monkeypatch)
    assert patch.status == "left out", patch.tried
    assert not any(task.in_one_order for task in ran)


def test_a_run_in_one_order_has_torch_s_deterministic_algorithms(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "print(torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic)\n"
    )
    task = Task(Program(str(program)), str(tmp_path), "emulated", "h100", 10)
    with reruns(60.0) as run:
        assert run(task).printed == "False False\n"
        assert run(replace(task, in_one_order=True)).printed == "True True\n"
    assert not torch.are_deterministic_algorithms_enabled()
