"""A line that decides by Python state, and only logs: no doubt where the step was seen to stay as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
LOG = logging.getLogger(__name__)


class Counting:
    def __init__(self) -> None:
        self.calls = 0
        self.counted = np.zeros(1, dtype=np.int64)
        self.kept: list[int] = []
        self.factor = 1.0
        self.is_doubled = False
        self.after = lambda y: y
        self.rate = 0.0
        self.until = -1
        self.logged = 0
        self.seen: list[int] = []


def step_of(state: Counting, decide: Callable[[Counting], Any]) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        state.counted[0] += 1
        state.kept.append(state.calls)
        factor = 2.0 if state.is_doubled else 1.0
        y = state.after(LINEAR(x) * factor)
        if state.calls == state.until:
            y = y * state.factor
        if state.logged == 10:
            y = y + 1
        if state.calls == 200 and state.factor != 1.0:
            y = y + 2
        decide(state)
        return y

    return step


def logs(state: Counting) -> None:
    if state.calls % 50 == 0:
        LOG.info("step %d", state.calls)


def logs_on_one_line(state: Counting) -> None:
    LOG.info("now") if state.counted[0] == 50 else None


def prints_from_some_step_on(state: Counting) -> None:
    if len(state.kept) >= 50 and state.calls > 1:
        print("long")


def logs_in_the_end(state: Counting) -> None:
    if state.calls == 9_000:
        LOG.info("end")


def stops_after_some_evaluations(state: Counting) -> None:
    """As early stopping does: the first evaluation is the best so far."""
    if state.calls % 100 == 0:
        state.logged = state.logged + 1 if state.rate else 0
        state.rate = 1.0
        state.is_doubled = state.logged > 3


def fills_an_empty_list(state: Counting) -> None:
    if state.calls % 100 == 0:
        state.seen.append(state.calls)
        state.is_doubled = len(state.seen) > 5


@pytest.mark.parametrize(
    "decide", [logs, logs_on_one_line, prints_from_some_step_on, logs_in_the_end]
)
def test_what_only_logs_is_no_doubt(decide: Callable[[Counting], None]) -> None:
    report = reported(step_of(Counting(), decide))
    assert report.verdict == "safe", report.reason
    assert any("Each step changes" in one for one in report.limits)


def sets_what_the_next_step_asks(state: Counting) -> None:
    if state.calls == 90_000:
        state.is_doubled = True


def replaces_what_the_next_step_calls(state: Counting) -> None:
    if state.calls == 90_000:
        state.after = lambda y: y * 3


def sets_when_a_step_is_another(state: Any) -> None:
    if state.calls == 50:
        state.until = 137


def sets_what_a_step_asks_much_later(state: Counting) -> None:
    if state.calls == 50:
        state.factor = 2.0


def counts_what_it_logs(state: Counting) -> None:
    if state.calls % 50 == 0:
        LOG.info("step %d", state.calls)
        state.logged += 1


def seeds(state: Counting) -> None:
    if state.calls % 50 == 0:
        torch.manual_seed(0)


@pytest.mark.parametrize(
    "decide",
    [
        seeds,
        sets_what_the_next_step_asks,
        replaces_what_the_next_step_calls,
        sets_when_a_step_is_another,
        sets_what_a_step_asks_much_later,
        counts_what_it_logs,
        stops_after_some_evaluations,
        fills_an_empty_list,
    ],
)
def test_what_another_step_may_decide_by_stays_a_doubt(decide: Callable[[Counting], None]) -> None:
    assert reported(step_of(Counting(), decide)).verdict == "unknown"


def test_what_a_line_does_where_the_run_has_to_end_is_not_known(tmp_path: Path) -> None:
    def makes(state: Counting) -> None:
        if state.calls % 50 == 0:
            (tmp_path / "logs").mkdir()

    report = reported(step_of(Counting(), makes))
    assert report.verdict == "unknown" and "becomes True" in report.reason
    assert not (tmp_path / "logs").exists()


def clears_a_meter(state: Counting) -> None:
    if len(state.kept) % 50 == 0:
        LOG.info("mean %f", sum(state.kept) / 50)
        state.kept.clear()


def keeps_what_it_logged(state: Any) -> None:
    if state.calls % 50 == 0:
        state.last = f"step {state.calls}"


@pytest.mark.parametrize("decide", [clears_a_meter, keeps_what_it_logged])
def test_what_changes_with_the_log_alone_is_no_doubt(decide: Callable[[Counting], None]) -> None:
    report = reported(step_of(Counting(), decide))
    assert report.verdict == "safe", report.reason


def test_a_file_that_is_opened_to_log_is_no_doubt_and_not_written(tmp_path: Path) -> None:
    def writes(state: Counting) -> None:
        if state.calls % 50 == 0:
            with (tmp_path / "log").open("a") as log:
                log.write("now")

    report = reported(step_of(Counting(), writes))
    assert report.verdict == "safe", report.reason
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_file_that_is_read_or_measured_on_an_occasion_is_a_doubt(
    mode: str, tmp_path: Path
) -> None:
    (tmp_path / "factor").write_text("1.0")

    def reads(state: Counting) -> None:
        if state.calls % 50 == 0:
            with (tmp_path / "factor").open(mode) as file:
                state.is_doubled = (file.tell() if mode == "a" else float(file.read())) > 100

    assert reported(step_of(Counting(), reads)).verdict == "unknown"


def test_what_was_never_seen_to_go_the_other_way_stays_a_doubt() -> None:
    def never(state: Counting) -> None:
        state.rate = 0.9 * state.rate + 0.1
        if state.rate > 1.01:
            state.factor = 2.0

    report = reported(step_of(Counting(), never))
    assert report.verdict == "unknown" and "chooses its way" in report.reason


def test_one_decision_that_logs_hides_no_other() -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        if state.calls % 50 == 0:
            LOG.info("now")
            calls = state.calls
            if calls % 300 == 0:
                return LINEAR(x * 2)
        return LINEAR(x)

    report = reported(step)
    assert report.verdict == "unknown" and "`return LINEAR(x * 2)`" in report.reason


@pytest.mark.parametrize(
    "switched",
    [
        lambda is_on: torch.backends.cudnn.flags(enabled=not is_on),
        lambda is_on: torch.set_grad_enabled(is_on),
    ],
)
def test_a_switch_that_is_put_back_at_once_is_seen(switched: Callable[[bool], Any]) -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        with switched(state.calls % 50 == 0):
            return LINEAR(x)

    assert reported(step).verdict == "unknown"


@pytest.mark.parametrize("takes", ["reads", "returns"])
def test_a_line_that_chooses_between_equal_tensors_is_a_doubt(takes: str) -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        one, two = x * 2, x * 3
        chosen = one if state.calls % 50 == 0 else two
        return LINEAR(chosen) if takes == "reads" else chosen

    assert reported(step).verdict == "unknown"
