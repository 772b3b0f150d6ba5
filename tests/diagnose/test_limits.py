"""What a report cannot vouch for: another path for captures, numbers that a graph keeps, memory that nobody holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from graphdoctor.diagnose.limits import doubts_of, limits_of
from graphdoctor.target import Target
from graphdoctor.target.target import Inputs
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Leaf, Op
from tests.support.builders import external, iteration, op, recording, tensor
from tests.support.diagnosing import reported

TARGET = Target("net", "net.py", "step", "inference", step=abs, fresh_inputs=Inputs, roots={})
ADD, MUL, CLAMP = (
    op(f"aten.{name}.Tensor", line=line) for line, name in enumerate(("add", "mul", "clamp"), 1)
)


def remarks(
    eager: Sequence[Iteration], captured: Sequence[Iteration], **changes: object
) -> tuple[str, ...]:
    made = replace(recording(), eager=tuple(eager), captured=tuple(captured), **changes)
    return limits_of(TARGET, made, (), ())


def as_eager_and_captured(eager: Sequence[Op], captured: Sequence[Op]) -> str:
    """What is said of steps whose last iteration is this one, after one that is the same in both."""
    same = iteration([ADD])
    (told,) = remarks((same, iteration(eager)), (same, iteration(captured)))
    return told


def test_the_last_iteration_says_which_operators_are_others_and_where_the_first_is() -> None:
    assert "(first aten.clamp.Tensor, model.py:3)" in as_eager_and_captured(
        [ADD, MUL, ADD], [ADD, CLAMP, MUL]
    )
    nowhere = replace(CLAMP, location=None)
    assert "(first aten.clamp.Tensor): " in as_eager_and_captured([ADD, MUL], [ADD, nowhere])


def test_more_operators_of_the_same_names_are_others_without_a_first() -> None:
    assert "than in eager: replays" in as_eager_and_captured([ADD, MUL], [ADD, MUL, CLAMP])


def test_one_iteration_is_enough_to_see_another_path() -> None:
    assert len(remarks((iteration([ADD]),), (iteration([MUL]),))) == 1
    assert remarks((iteration([ADD]),), (iteration([ADD]),)) == ()


def test_where_one_of_the_two_runs_is_missing_nothing_is_said_of_paths() -> None:
    assert remarks((), (iteration([ADD]),)) == remarks((iteration([ADD]),), ()) == ()


@pytest.mark.parametrize(
    ("value", "is_told"),
    [("3", True), ("0.5", True), ("inf", True), ("nan", False), ("'mean'", False), ("None", False)],
)
def test_a_number_among_the_inputs_is_one_that_a_graph_keeps(value: str, is_told: bool) -> None:
    step = replace(
        iteration([ADD]), inputs=(Leaf("inputs[1]", value), Leaf("inputs[0]", tensor(1, 4)))
    )
    told = remarks((step,), (step,))
    assert ["with, `inputs[1]`, are frozen at capture" in one for one in told] == [True] * is_told


def test_memory_that_nothing_leads_to_is_told_once_a_line() -> None:
    reads = [op("aten.add.Tensor", [tensor(7, 4)], [tensor(2, 4)], line=line) for line in (5, 5, 9)]
    cached = replace(external(7, "?"), origin="unknown")
    told = remarks((), (iteration(reads, externals=[cached]),))
    assert [one.partition(" GPU tensor")[2][:13] for one in told] == [
        " (model.py:5)",
        " (model.py:9)",
    ]
    for known in (external(7, "inputs[0]"), external(7, "model.weight")):
        assert remarks((), (iteration(reads, externals=[known]),)) == ()


def test_memory_of_the_host_that_nothing_leads_to_is_no_matter() -> None:
    on_host = tensor(7, 4, device="cpu")
    cached = replace(external(7, "?", device="cpu"), origin="unknown")
    assert remarks((), (iteration([op("aten.add.Tensor", [on_host])], externals=[cached]),)) == ()


def test_where_the_emulated_result_may_be_another_is_a_doubt_told_once() -> None:
    ops = [
        replace(op("mine.op"), fallback="no GPU to ask", location=Location("net.py", line))
        for line in (4, 8)
    ]
    step = iteration([ADD, *ops])
    assert doubts_of(recording(step, step)) == ("no GPU to ask (net.py:4)",)


def test_other_operators_while_captured_are_told() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return x.clamp(max=1e6)
        return x + 0

    report = reported(step)
    assert report.verdict == "safe"
    told = [one for one in report.limits if "issues other operators than in eager" in one]
    assert len(told) == 1
    assert "test_limits.py" in told[0]


def test_nothing_is_said_to_have_been_compared_where_nothing_can_be_captured() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x + x.sum().item()
        return x.clamp(max=1e6) if torch.cuda.is_current_stream_capturing() else x + 0

    report = reported(step)
    assert report.verdict == "unsafe"
    (told,) = [one for one in report.limits if "issues other operators than in eager" in one]
    assert "were compared" not in told


def test_the_same_operators_need_no_word() -> None:
    report = reported(lambda x: x * 2)
    assert not any("other operators than in eager" in one for one in report.limits)
