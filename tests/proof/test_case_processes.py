"""Cases in processes of their own: what one of them does to itself costs its own lines."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
if str(TRUTH) not in sys.path:
    sys.path.append(str(TRUTH))

import case_processes  # noqa: E402
from case_processes import Emit, Forks  # noqa: E402
from gpu_workers import Question, Workers, places_of_workers, side_by_side  # noqa: E402
from zoo import Case, in_turn  # noqa: E402

STAND_IN = [sys.executable, str(Path(__file__).with_name("gpu_worker_stand_in.py"))]


def case(name: str, kind: str = "any") -> Case:
    return Case(name, "family", kind, name, lambda: None)  # type: ignore[arg-type,return-value]


def does_what_it_is_called(case: Case, emit: Emit) -> None:
    emit({"said": "first"})
    if case.model == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if case.model == "hangs":
        time.sleep(60)
    emit({"said": "second"})


def forks_of(names: list[str], folder: Path) -> Forks:
    return Forks([case(name) for name in names], does_what_it_is_called, folder=folder, limit_s=2.0)


def workers_of(names: list[str], folder: Path, *, start: str = "") -> Workers:
    questions = [Question(case(name), "inference", "raw") for name in names]
    return Workers(questions, [*STAND_IN, start], folder=folder, limit_s=2.0)


def lines(
    folder: Path,
    *,
    forked: Sequence[str] = (),
    asked: Sequence[str] = (),
    start: str = "",
    jobs: int = 2,
    within_s: float = 30,
) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in (*forked, *asked)}
    run = side_by_side(
        forks_of(list(forked), folder),
        workers_of(list(asked), folder, start=start),
        jobs=jobs,
        deadline=time.monotonic() + within_s,
    )
    for line in run:
        found[line["model"]].append(line.get("said") or line.get("raw") or line["crash"])
    return found


def test_a_case_that_dies_or_hangs_keeps_what_it_said_and_takes_no_other_with_it(
    tmp_path: Path,
) -> None:
    found = lines(tmp_path, forked=["dies", "lives", "hangs"])
    assert found == {
        "dies": ["first", "ended by SIGKILL"],
        "lives": ["first", "second"],
        "hangs": ["first", "nothing within 2 s"],
    }


def test_what_runs_at_the_deadline_is_ended_and_left_for_another_run(tmp_path: Path) -> None:
    began = time.monotonic()
    assert lines(tmp_path, forked=["hangs"], within_s=1.5) == {"hangs": ["first"]}
    assert lines(tmp_path, asked=["hangs"], within_s=0.5) == {"hangs": []}
    assert time.monotonic() - began < 10


def test_a_worker_answers_one_question_after_the_other(tmp_path: Path) -> None:
    assert lines(tmp_path, asked=["a", "b"], jobs=1) == {"a": ["a"], "b": ["b after a"]}


def test_a_worker_that_dies_hangs_or_is_spoilt_is_replaced(tmp_path: Path) -> None:
    found = lines(tmp_path, asked=["dies", "a", "spoils", "hangs", "b"], jobs=1)
    assert found == {
        "dies": ["ended by SIGSEGV"],
        "a": ["a"],
        "spoils": ["spoils after a"],
        "hangs": ["nothing within 2 s"],
        "b": ["b"],
    }


def test_a_question_that_died_is_asked_once_more_of_another_worker(tmp_path: Path) -> None:
    found = lines(tmp_path, asked=["a", "dies after another"], jobs=1)
    assert found == {"a": ["a"], "dies after another": ["dies after another"]}


def test_without_a_gpu_one_sentence_says_so_and_the_forks_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = lines(tmp_path, forked=["lives"], asked=["a", "b"], start="no GPU", jobs=4)
    assert found == {"lives": ["first", "second"], "a": [], "b": []}
    assert capfd.readouterr().out == (
        "CUDA does not start in a process of its own "
        "(RuntimeError: No CUDA GPUs are available); 2 questions to the GPU are left out.\n"
    )


def test_places_go_to_what_is_behind_and_to_what_is_left(tmp_path: Path) -> None:
    some, none = [f"{n}" for n in range(10)], list[str]()
    assert places_of_workers(forks_of(some, tmp_path), workers_of(some, tmp_path), 16) == 5
    assert places_of_workers(forks_of(none, tmp_path), workers_of(some, tmp_path), 16) == 16
    assert places_of_workers(forks_of(some, tmp_path), workers_of(none, tmp_path), 16) == 3


def test_what_a_fork_did_not_come_through_is_said() -> None:
    def ends(_: Emit) -> None:
        os._exit(7)

    assert case_processes.forked(ends, print, limit_s=30) == "exit status 7"
    assert case_processes.forked(lambda _: time.sleep(60), print, limit_s=0.2) != ""
    assert case_processes.forked(lambda _: None, print, limit_s=30) == ""


def test_any_beginning_has_each_groups_share() -> None:
    many, few = [case(f"m{n}") for n in range(6)], [case(f"f{n}") for n in range(2)]
    first = [each.model for each in in_turn([many, few])][:4]
    assert sorted(first) == ["f0", "m0", "m1", "m2"]
