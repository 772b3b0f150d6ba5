"""Two runs of a step are the same one in all that a graph keeps, and in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from graphdoctor.record.later.later_events import (
    Event,
    StepRun,
    all_match,
    first_difference,
    signature,
    state_of,
)
from graphdoctor.values.recording import Leaf, Op
from tests.support.builders import external, op, tensor
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
WEIGHT, INPUT, RESULT, LOSS = range(1, 5)


def step(*, first: int = 0, factor: float = 2.0, weight: int = WEIGHT) -> list[Op]:
    """A product and a sum; its memory has other numbers in each run."""
    made, given = tensor(first + RESULT, 4), tensor(first + INPUT, 4)
    return [
        op("aten.mul.Tensor", [given, tensor(weight, 4)], [made], line=1),
        op("aten.add.Tensor", [made, factor], [tensor(first + LOSS, 4)], line=2),
    ]


def one_run(ops: Sequence[Op], *events: Event, **changes: Any) -> StepRun:
    state = [
        external(WEIGHT, "model.weight"),
        external(9, "model.other"),
        external(INPUT, "inputs[0]"),
    ]
    return StepRun(ops, state_of(state), events)._replace(**changes)


USUAL = one_run(step())


def place(usual: StepRun, other: StepRun) -> int | None:
    """On which line they begin to differ."""
    found = first_difference(usual, other)
    assert found is None or found.location is not None
    return found.location.line if found is not None else None  # type: ignore[union-attr]


def test_memory_of_another_number_is_no_difference_but_for_the_states() -> None:
    assert place(USUAL, one_run(step(first=100))) is None
    assert place(USUAL, one_run(step(weight=9))) == 1


def test_nan_is_like_nan() -> None:
    nan = float("nan")
    assert place(one_run(step(factor=nan)), one_run(step(factor=float("nan")))) is None


MUL, ADD = step()


@pytest.mark.parametrize(
    "other",
    [
        replace(ADD, name="aten.sub.Tensor"),
        replace(ADD, args=(ADD.args[0], 3.0)),
        replace(ADD, args=(ADD.args[0], 2)),
        replace(ADD, args=(tensor(RESULT, 2, 2), 2.0)),
        replace(ADD, args=(tensor(RESULT, 4, offset=1), 2.0)),
        replace(ADD, args=((ADD.args[0],), 2.0)),
        replace(ADD, kwargs=(("alpha", 1),)),
        replace(ADD, outputs=(tensor(LOSS, 4, dtype="float16"),)),
    ],
)
def test_whatever_a_graph_freezes_of_an_operator_is_a_difference(other: Op) -> None:
    assert signature(other, {}) != signature(ADD, {})
    assert first_difference(USUAL, one_run([MUL, other])) is other


@pytest.mark.parametrize("more", [USUAL.ops[:1], [*USUAL.ops, replace(ADD, location=None)]])
def test_one_too_many_or_too_few_is_the_difference(more: list[Op]) -> None:
    longer = max(more, USUAL.ops, key=len)
    assert first_difference(USUAL, one_run(more)) is longer[min(len(more), 2)]
    assert first_difference(one_run(more), USUAL) is longer[min(len(more), 2)]


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([(1, "sync", "a")], None),
        ([], 2),
        ([(0, "sync", "a")], 1),
        ([(1, "sync", "a"), (2, "sync", "b")], 2),
        ([(1, "sync", "other")], 2),
    ],
)
def test_what_the_host_did_between_operators_is_a_difference_there(
    events: list[Event], line: int | None
) -> None:
    """After the last one, it is named by that."""
    assert place(one_run(step(), (1, "sync", "a")), one_run(step(), *events)) == line


def test_a_run_without_operators_has_none_to_name() -> None:
    assert first_difference(one_run([], (0, "sync", "a")), one_run([])) is None


def with_output(storage: int, path: str = "output") -> StepRun:
    return one_run(step(), outputs=(Leaf(path, tensor(storage, 4)), Leaf("word", "'a'")))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (with_output(LOSS), True),
        (with_output(RESULT), False),
        (with_output(LOSS, "output.loss"), False),
        (with_output(LOSS)._replace(ops=step(factor=3.0)), False),
    ],
)
def test_the_same_step_also_returns_the_same(other: StepRun, is_same: bool) -> None:
    assert (first_difference(with_output(LOSS), other) is None) is is_same


@pytest.mark.parametrize("turned", [False, True])
def test_memory_that_is_shared_in_one_run_alone_is_another_step(turned: bool) -> None:
    apart = one_run([op("aten.add.Tensor", [tensor(2, 4), tensor(3, 4)])])
    shared = one_run([op("aten.add.Tensor", [tensor(2, 4), tensor(2, 4)])])
    assert first_difference(*((shared, apart) if turned else (apart, shared))) is not None


def test_runs_are_alike_where_each_is_like_the_first() -> None:
    other = one_run(step(factor=3.0))
    assert all_match([USUAL, one_run(step(first=50)), USUAL])
    assert not all_match([USUAL, USUAL, other])
    assert all_match([other])


class Later:
    """Gives the first of two things for a thousand steps, by no line that compares."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, now: object, then: object) -> object:
        self.calls += 1
        return (now, then)[min(self.calls // 1000, 1)]


def takes_another(x: torch.Tensor, later: Later) -> object:
    a = LINEAR(x)
    b = torch.relu(a)
    return later.of(a, b) * 2  # type: ignore[operator]


def returns_another(x: torch.Tensor, later: Later) -> object:
    a = LINEAR(x)
    return later.of(a, torch.relu(a))


def returns_another_number(x: torch.Tensor, later: Later) -> object:
    return LINEAR(x), later.of(False, True)


@pytest.mark.parametrize("step", [takes_another, returns_another, returns_another_number])
def test_another_tensor_or_number_is_another_step(step: Callable[..., object]) -> None:
    later = Later()
    report = reported(lambda x: step(x, later))
    assert report.verdict == "unsafe"
    assert "GD217" in {finding.rule for finding in report.findings}


def test_an_object_that_is_returned_anew_is_no_other_step() -> None:
    later = Later()
    report = reported(lambda x: (LINEAR(x), later.of(Later, Later)))
    assert report.verdict == "safe", report.reason
