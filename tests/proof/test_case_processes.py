"""Cases in processes of their own: what one of them does to itself costs its own lines."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
if str(TRUTH) not in sys.path:
    sys.path.append(str(TRUTH))

import case_processes  # noqa: E402
from case_processes import Emit  # noqa: E402
from zoo import Case, in_turn  # noqa: E402


def case(name: str, kind: str = "any") -> Case:
    return Case(name, "family", kind, name, lambda: None)  # type: ignore[arg-type,return-value]


def does_what_it_is_called(case: Case, emit: Emit) -> None:
    emit({"said": "first"})
    if case.model == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if case.model == "hangs":
        time.sleep(60)
    emit({"said": "second"})


def lines(names: list[str], folder: Path, *, within_s: float) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in names}
    run = case_processes.run(
        [case(name) for name in names],
        does_what_it_is_called,
        folder=folder,
        jobs=2,
        limit_s=1.0,
        deadline=time.monotonic() + within_s,
    )
    for line in run:
        found[line["model"]].append(line.get("said") or line["crash"])
    return found


def test_a_case_that_dies_or_hangs_keeps_what_it_said_and_takes_no_other_with_it(
    tmp_path: Path,
) -> None:
    found = lines(["dies", "lives", "hangs"], tmp_path, within_s=30)
    assert found == {
        "dies": ["first", "ended by SIGKILL"],
        "lives": ["first", "second"],
        "hangs": ["first", "nothing within 1 s"],
    }


def test_what_runs_at_the_deadline_is_ended_and_left_for_another_run(tmp_path: Path) -> None:
    began = time.monotonic()
    assert lines(["hangs"], tmp_path, within_s=0.5) == {"hangs": ["first"]}
    assert time.monotonic() - began < 10


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
