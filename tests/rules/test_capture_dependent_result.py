"""Code that does something else while it is captured: reported where an output shows it, and only there."""

from __future__ import annotations

import math
import time

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.partition import partition
from graphdoctor.record.operators import sample_of
from graphdoctor.rules.capture_dependent_result import other_results, partings
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import CaptureQuery
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Leaf, Recording, Sample
from tests.steps.making import data
from tests.support.builders import iteration, op, tensor
from tests.support.diagnosing import diagnosed, found, judged, marked


def is_capturing() -> bool:
    """Asked anew each time: the emulated device stands in for the question."""
    return torch.cuda.is_current_stream_capturing()


def a_check_is_left_out():
    def step(x):
        if not is_capturing() and x.isnan().any():
            raise ValueError("not a number")
        return torch.tanh(x)

    return step, (data(),)


def another_order_of_additions():
    def step(x):
        if is_capturing():
            return x.abs().flatten().sum()  # a sum near 0 would have few digits
        return x.abs().sum(dim=0).sum()

    return step, (data(64, 64),)


def a_value_that_no_output_holds():
    def step(x):
        y = torch.sin(x) if is_capturing() else torch.cos(x)
        y.mul_(2)
        return x + 1

    return step, (data(),)


def another_number():
    def step(x):
        factor = 2.0 if is_capturing() else 3.0
        return torch.tanh(x * factor)  # <- GD214

    return step, (data(),)


def something_is_left_out():
    def step(x):
        y = torch.tanh(x)
        if not is_capturing():  # <- GD214
            y = y.clamp(min=0.5)
        return y * 2

    return step, (data(),)


def a_whole_number_differs():
    def step(x):
        y = x if is_capturing() else -x
        return y.argmax(dim=1)  # the operators before it part

    return step, (data(64, 64),)


def another_size():
    def step(x):
        if is_capturing():  # <- GD214
            return torch.tanh(x[:2])
        return torch.tanh(x)

    return step, (data(),)


def another_way_to_drop():
    def step(x):
        if is_capturing():
            return x * torch.bernoulli(torch.full_like(x, 0.5)) / 0.5
        return F.dropout(x, 0.5)

    return step, (data(64, 64),)


def a_number_more_is_drawn_before_dropout():
    def step(x):
        if is_capturing():
            torch.rand(3, device=x.device)
        return F.dropout(x, 0.5)

    return step, (data(64, 64),)


def another_dropout_reaches_the_next_step():
    weight = torch.ones(64, 64, device="cuda")

    def step(x):
        y = torch.tanh(x * weight).abs()  # a sum near 0 would have few digits
        total = y.flatten().sum() if is_capturing() else y.sum(dim=0).sum()  # rounding only
        keep = torch.full_like(x, 0.5)
        weight.mul_(torch.bernoulli(keep) * 2 if is_capturing() else F.dropout(keep * 2, 0.5))
        return total

    return step, (data(64, 64),)


def other_arithmetic_before_the_same_dropout():
    def step(x):
        factor = 2.0 if is_capturing() else 3.0
        y = torch.tanh(x * factor)  # <- GD214
        return F.dropout(y, 0.5)

    return step, (data(64, 64),)


def other_arithmetic_beside_another_dropout():
    def step(x):
        if is_capturing():  # <- GD214
            dropped = x * torch.bernoulli(torch.full_like(x, 0.5)) / 0.5
            other = torch.sin(x)
        else:
            dropped = F.dropout(x, 0.5)
            other = torch.cos(x)
        return dropped, other

    return step, (data(64, 64),)


def attention_that_drops_nothing():
    def step(x):
        q = x.reshape(2, 2, 16, 64)
        mask = torch.zeros(16, 16, device=x.device) if is_capturing() else None  # <- GD214
        scale = 0.5 if mask is not None else None
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask, scale=scale)

    return step, (data(64, 64),)


def a_clock_and_a_question():
    def step(x):
        is_capturing()
        return x * time.perf_counter()  # <- GD208

    return step, (data(),)


def test_a_clock_is_not_taken_for_the_path_of_the_capture() -> None:
    assert found(diagnosed(a_clock_and_a_question)) == marked(a_clock_and_a_question)


@pytest.mark.parametrize(
    "step", [a_check_is_left_out, another_order_of_additions, a_value_that_no_output_holds]
)
def test_another_path_to_the_same_result_is_no_finding(step) -> None:
    diagnosis, outcome = judged(step)
    assert "GD214" not in {rule for rule, _ in found(diagnosis)}
    assert outcome.verification is not None and outcome.verification.status == "verified"


@pytest.mark.parametrize(
    "step",
    [
        another_way_to_drop,
        a_number_more_is_drawn_before_dropout,
        another_dropout_reaches_the_next_step,
    ],
)
def test_of_other_random_numbers_nothing_is_said(step) -> None:
    # With some numbers hardly a weight outlives the steps, and a sum tells too much.
    torch.manual_seed(0)
    diagnosis, outcome = judged(step)
    assert "GD214" not in {rule for rule, _ in found(diagnosis)}
    verification = outcome.verification
    assert verification is not None and verification.status == "not-verified"
    assert "draws other random numbers" in verification.reason


@pytest.mark.parametrize(
    "step",
    [
        other_arithmetic_before_the_same_dropout,
        other_arithmetic_beside_another_dropout,
        attention_that_drops_nothing,
    ],
)
def test_other_arithmetic_is_found_beside_random_numbers(step) -> None:
    diagnosis, outcome = judged(step)
    assert found(diagnosis) == marked(step)
    verification = outcome.verification
    assert verification is not None and verification.status == "wrong", verification
    assert "something else while it is captured" in verification.differences[0].detail


@pytest.mark.parametrize("step", [another_number, something_is_left_out, another_size])
def test_another_result_is_found_on_its_line_and_the_machine_agrees(step) -> None:
    diagnosis, outcome = judged(step)
    assert found(diagnosis) == marked(step)
    assert [finding.count for finding in diagnosis.findings] == [1]
    assert outcome.verification is not None and outcome.verification.status != "verified"


def finding_of(step) -> Finding:
    (finding,) = diagnosed(step).findings
    return finding


def test_whole_numbers_count_as_soon_as_they_differ() -> None:
    assert finding_of(a_whole_number_differs).rule == "GD214"


def test_the_message_names_the_question_the_operator_and_both_values() -> None:
    message = finding_of(another_number).message
    assert "receives 3 as argument 2 in eager, and 2 during capture" in message
    assert "torch.cuda.is_current_stream_capturing()" in message
    assert "output differs from eager:" in message


def run(*, captured: bool, asks: bool = True) -> Iteration:
    """Of a step that makes a mask while it is captured, if it asks."""
    mask = [
        op("aten.ge.Scalar", [tensor(2, 8), 0], [tensor(3, 8)], line=3),
        op("aten.neg.default", [tensor(3, 8)], [tensor(4, 8)], line=4),
    ]
    operators = [
        op("aten.sin.default", [tensor(1, 8)], [tensor(2, 8)], line=1),
        *(mask if captured else []),
        op("aten.add.Tensor", [tensor(4 if captured else 2, 8), 1], [tensor(5, 8)], line=5),
    ]
    question = CaptureQuery("is_current_stream_capturing()", 1)
    value = Sample((1.0 if captured else 2.0,), scale=2.0, eps=1e-7)
    return replace(
        iteration(operators, capturing=captured),
        events=(question,) if asks else (),
        outputs=(Leaf("output", tensor(5, 8), sample=value),),
    )


def both(**options: bool) -> Recording:
    eager, captured = run(captured=False, **options), run(captured=True, **options)
    return Recording("emulated", "inference", (eager,), (captured,))


def test_what_only_the_capture_runs_stays_out_of_regions_and_counts_once() -> None:
    hits = list(partings(both()))
    assert [(each.op_index, each.follows) for each in hits] == [(1, False), (2, True)]
    assert {each.location for each in hits} == {Location("model.py", 3)}
    assert "1 instead of 2" in hits[0].message
    diagnosis = diagnose(both())
    assert [finding.count for finding in diagnosis.findings] == [1]
    plan = partition(both(), diagnosis, profile=load_profile("h100"))
    captured = {index for planned in plan.regions for index in planned.ops_in(0)}
    assert not captured & {1, 2}


def test_a_step_that_never_asks_differs_for_another_reason() -> None:
    assert list(partings(both(asks=False))) == []


def leaf(*values: float, eps: float = 1e-7, scale: float = 1.0) -> Leaf:
    return Leaf("output", tensor(1, 8), sample=Sample(values, scale=scale, eps=eps))


def results(eager: Leaf, captured: Leaf) -> int:
    made = [replace(iteration([]), outputs=(each,)) for each in (eager, captured)]
    return len(other_results(*made))


def test_half_the_digits_may_be_lost_on_another_path_and_no_more() -> None:
    assert results(leaf(1.0), leaf(1.0 + 1e-4)) == 0
    assert results(leaf(1.0), leaf(1.0 + 1e-3)) == 1
    assert results(leaf(1e-5, scale=100.0), leaf(2e-5, scale=100.0)) == 0
    assert results(leaf(1, eps=0.0, scale=0.0), leaf(2, eps=0.0, scale=0.0)) == 1


def test_values_that_are_no_numbers_are_equal_to_themselves_only() -> None:
    assert results(leaf(math.nan), leaf(math.nan)) == 0
    assert results(leaf(math.inf), leaf(math.inf)) == 0
    assert results(leaf(math.nan), leaf(1.0)) == 1
    assert results(leaf(math.inf), leaf(-math.inf)) == 1


def test_an_output_that_nobody_looked_at_is_not_compared() -> None:
    unseen = Leaf("output", tensor(1, 8))
    assert results(unseen, leaf(1.0)) == results(leaf(1.0), unseen) == 0


def test_a_sample_is_spread_over_the_tensor_and_bounded() -> None:
    whole = torch.arange(100_000.0)
    sample = sample_of(whole)
    assert sample is not None
    assert len(sample.values) <= 256 and max(sample.values) > 99_000
    assert (sample.scale, sample.eps) == (99_999.0, torch.finfo(torch.float32).eps)
    assert sample_of(torch.tensor([1 + 2j])) == Sample((1.0, 2.0), 2.0, sample.eps)
    assert sample_of(torch.tensor([True, False])) == Sample((1.0, 0.0), 0.0, 0.0)
    assert sample_of(torch.empty(0)) is None and sample_of("text") is None


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (torch.tensor([1.0, -3.0, math.nan, math.inf, -math.inf]), 3.0),
        (torch.tensor([math.nan]), 0.0),
        (torch.tensor([-2.0, 1.0]), 2.0),
        (torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn), 448.0),
    ],
)
def test_the_scale_of_a_sample_is_its_largest_finite_magnitude(
    values: torch.Tensor, scale: float
) -> None:
    sample = sample_of(values)
    assert sample is not None and sample.scale == scale
