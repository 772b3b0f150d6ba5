"""What another algorithm for the same function may differ by from eager, and what it may not."""

from __future__ import annotations

import math

import pytest
import torch

from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint, gaps_between
from graphdoctor.proof.other_rounding import OtherRounding, largest_gradient_of, rounded_anew

EPS = 2.0**-23  # half of its digits: 2.0**-11.5
KEY = "model.key.bias"
MOMENT = f"optimizer.state[{KEY}].exp_avg"
NOISE = 4 * EPS  # beside a gradient of 8.0


@pytest.mark.parametrize(
    ("gap", "is_rounding"),
    [
        (Gap("output", max_abs=3.4e-4, scale=1.0, eps=EPS), True),
        (Gap("output", max_abs=3.5e-4, scale=1.0, eps=EPS), False),
        (Gap("model.key.bias", max_abs=1e-4, scale=1.0, eps=EPS, detail="nan"), False),
    ],
)
def test_another_algorithm_agrees_to_half_the_digits(gap: Gap, is_rounding: bool) -> None:
    assert (OtherRounding([]).beyond([[gap]]) == [[]]) == is_rounding


def test_a_tensor_has_no_more_digits_than_the_products_that_it_comes_from() -> None:
    gap = Gap("output", max_abs=0.02, scale=1.0, eps=EPS)
    assert OtherRounding([]).beyond([[gap]]) == [[gap]]
    assert OtherRounding([], eps=2.0**-11).beyond([[gap]]) == [[]]
    counts = Gap("output", max_abs=1.0, scale=100.0)  # whole numbers do not round
    assert OtherRounding([], eps=2.0**-11).beyond([[counts]]) == [[counts]]


def step(gradient: float, bias: float, moment: float) -> Footprint:
    """A weight with a large gradient, and a bias of two elements: the second is like the weight."""
    return Footprint(
        {
            "model.weight.grad": torch.tensor([8.0]),
            f"{KEY}.grad": torch.tensor([gradient, 2.0]),
            KEY: torch.tensor([bias, 0.5]),
            MOMENT: torch.tensor([moment, 0.2]),
        },
        {},
        {},
    )


def eager() -> list[Footprint]:
    """The first element moves by 0.1 in a step, and its first moment by 1e-7."""
    return [step(NOISE, 0.1, 5e-8), step(-NOISE, 0.0, -5e-8)]


def left_over(*replays: Footprint) -> list[list[str]]:
    """The paths that differ after each step once they are aligned."""
    expected = eager()[: len(replays)] if len(replays) > 1 else eager()
    aligned = OtherRounding(expected).aligned(replays)
    return [
        [gap.path for gap in gaps_between(wanted, found)]
        for wanted, found in zip(expected, aligned, strict=False)
    ]


def test_an_optimizer_moves_an_element_whose_gradient_is_all_rounding_either_way() -> None:
    assert left_over(step(-NOISE, -0.1, -5e-8)) == [[]]
    assert left_over(step(-NOISE, -0.1, 1.5e-7)) == [[]]
    # Farther than it moves in a step, to and fro, no optimizer brings it.
    assert left_over(step(-NOISE, 0.31, 5e-8)) == [[KEY]]
    assert left_over(step(-NOISE, 0.1, 3e-7)) == [[MOMENT]]
    assert left_over(step(-NOISE, math.nan, 5e-8)) == [[KEY]]


def test_a_second_moment_may_differ_by_the_square_of_what_rounding_leaves() -> None:
    square = (8 * EPS) ** 2  # of the largest gradient, 8.0
    second = OtherRounding([step(NOISE, 0.1, 0.0)]).aligned([step(-NOISE, 0.1, 0.9 * square)])
    assert [float(each.tensors[MOMENT][0]) for each in second] == [0.0]
    second = OtherRounding([step(NOISE, 0.1, 0.0)]).aligned([step(-NOISE, 0.1, 1.1 * square)])
    assert [float(each.tensors[MOMENT][0]) for each in second] == pytest.approx([1.1 * square])


def test_an_element_whose_gradient_agrees_must_agree_too() -> None:
    assert left_over(step(NOISE, -0.1, 5e-8)) == [[KEY]]


@pytest.mark.parametrize(
    ("apart", "left"), [(1e-4, [f"{KEY}.grad", KEY]), (3.4e-4, [f"{KEY}.grad", KEY]), (3.5e-4, [])]
)
def test_a_gradient_that_agrees_to_half_its_digits_is_not_all_rounding(
    apart: float, left: list[str]
) -> None:
    assert left_over(step(NOISE * (1 + apart), -0.1, 5e-8)) == [left]


@pytest.mark.parametrize(("eps", "left"), [(0.0, [f"{KEY}.grad"]), (2 * EPS, [])])
def test_a_coarser_product_rounds_larger_gradients(eps: float, left: list[str]) -> None:
    replay = step(-4 * 8 * EPS, 0.1, 5e-8)
    (aligned,) = OtherRounding(eager(), eps=eps).aligned([replay])
    assert [gap.path for gap in gaps_between(eager()[0], aligned)] == left


def test_a_gradient_larger_than_the_rounding_of_the_largest_counts() -> None:
    assert left_over(step(-4 * 8 * EPS, 0.1, 5e-8)) == [[f"{KEY}.grad"]]


def test_noise_of_a_gradient_is_left_out_and_its_parameter_is_compared() -> None:
    replay = step(NOISE, 0.2, 5e-8)
    replay.tensors["model.weight.grad"][0] = 8.0005  # half its digits are 8.0028

    (aligned,) = OtherRounding(eager(), noise=1e-3).aligned([replay])

    assert [gap.path for gap in gaps_between(eager()[0], aligned)] == [KEY]


@pytest.mark.parametrize(
    ("noise", "parameter", "left"),
    [
        (1e-3, 0.1 + 3e-6, []),  # a step moves it by 0.1, its gradient is 1e-5 of itself away
        (1e-3, 0.1 + 5e-6, [KEY]),  # as a learning rate does that stays what it was
        (1e-6, 0.1 + 3e-6, [f"{KEY}.grad", KEY]),
    ],
)
def test_a_parameter_moves_with_the_noise_of_its_gradient(
    noise: float, parameter: float, left: list[str]
) -> None:
    def trained(gradient: float, parameter: float) -> Footprint:
        return Footprint(
            {f"{KEY}.grad": torch.tensor([gradient]), KEY: torch.tensor([parameter])}, {}, {}
        )

    expected = [trained(2.0, 0.1), trained(2.0, 0.0)]
    replay = trained(2.0 * (1 + 1e-5), parameter)

    (aligned,) = OtherRounding(expected, noise=noise).aligned([replay])

    assert [gap.path for gap in gaps_between(expected[0], aligned)] == left


def test_noise_is_at_most_half_the_digits_of_the_largest_gradient() -> None:
    replay = step(NOISE, 0.1, 5e-8)
    replay.tensors["model.weight.grad"][0] = 8.003

    (aligned,) = OtherRounding(eager(), noise=1.0).aligned([replay])

    assert [gap.path for gap in gaps_between(eager()[0], aligned)] == ["model.weight.grad"]


def test_an_element_that_is_no_number_says_nothing_of_how_far_others_move() -> None:
    expected = eager()
    for seen in expected:
        seen.tensors[KEY][1] = math.nan
    replay = step(-NOISE, -0.1, -5e-8)
    replay.tensors[KEY][1] = math.nan

    (aligned,) = OtherRounding(expected).aligned([replay])

    assert gaps_between(expected[0], aligned) == []


def test_an_element_whose_gradient_is_zero_says_nothing_of_how_far_others_move() -> None:
    """Momentum moves the second element by 5.0 without a gradient: the first moves by 0.1 at most."""
    expected = eager()
    for seen, moved in zip(expected, (5.0, 0.0), strict=True):
        seen.tensors[f"{KEY}.grad"][1] = 0.0
        seen.tensors[KEY][1] = moved
    replay = step(-NOISE, 0.31, 5e-8)
    replay.tensors[f"{KEY}.grad"][1] = 0.0
    replay.tensors[KEY][1] = 5.0

    (aligned,) = OtherRounding(expected).aligned([replay])

    assert [gap.path for gap in gaps_between(expected[0], aligned)] == [KEY]


def test_elements_beside_one_whose_gradient_is_all_rounding_count() -> None:
    replay = step(-NOISE, -0.1, 5e-8)
    replay.tensors[KEY][1] = 0.6
    assert left_over(replay) == [[KEY]]


def test_runs_part_farther_with_every_step() -> None:
    far = step(-NOISE, -0.3, 5e-8)
    again = step(NOISE, -0.4, -5e-8)
    assert left_over(far, again) == [[KEY], []]


def test_of_a_single_step_it_is_not_known_how_far_it_moves() -> None:
    (aligned,) = OtherRounding(eager()[:1]).aligned([step(-NOISE, -0.1, 5e-8)])
    assert [gap.path for gap in gaps_between(eager()[0], aligned)] == [KEY]


def test_what_replays_left_behind_is_not_written_to() -> None:
    replay = step(-NOISE, -0.1, 1e-7)
    list(OtherRounding(eager()).aligned([replay]))
    assert replay.tensors[KEY].tolist() == pytest.approx([-0.1, 0.5])


def test_tensors_of_another_shape_or_kind_are_left_as_they_are() -> None:
    replay = step(-NOISE, 0.1, 5e-8)
    tensors = {**replay.tensors, f"{KEY}.grad": torch.zeros(3), "counts.grad": torch.tensor([1])}
    (aligned,) = OtherRounding(eager()).aligned([Footprint(tensors, {}, {})])
    assert aligned.tensors[f"{KEY}.grad"] is tensors[f"{KEY}.grad"]


def test_the_largest_gradient_is_that_of_all_steps() -> None:
    first = Footprint(
        {
            "model.weight": torch.tensor([9.0]),
            "model.weight.grad": torch.tensor([-3.0, 1.0]),
            "model.none.grad": torch.empty(0),
            "model.count.grad": torch.tensor([7]),
        },
        {},
        {},
    )
    second = Footprint({"model.weight.grad": torch.tensor([2.0, -1.0])}, {}, {})
    assert largest_gradient_of([first, second]) == 3.0
    assert largest_gradient_of([second, first]) == 3.0
    assert largest_gradient_of([second]) == 2.0
    assert largest_gradient_of([]) == 0.0


def test_the_largest_of_its_steps_says_how_far_an_optimizer_moves_an_element() -> None:
    """By 0.1 and then not at all: twice 0.1 to either side is as far as it may be."""
    expected = [*eager(), step(-NOISE, 0.0, -5e-8)]
    (aligned,) = OtherRounding(expected).aligned([step(-NOISE, -0.09, 5e-8)])
    assert gaps_between(expected[0], aligned) == []


def test_a_parameter_of_one_element_is_aligned_and_one_of_none_left_alone() -> None:
    def one(gradient: float, bias: float) -> Footprint:
        tensors = {
            "model.weight.grad": torch.tensor([8.0]),
            "model.none.grad": torch.empty(0),
            "model.none": torch.empty(0),
            f"{KEY}.grad": torch.tensor([gradient]),
            KEY: torch.tensor([bias]),
        }
        return Footprint(tensors, {}, {})

    expected = [one(NOISE, 0.1), one(-NOISE, 0.0)]
    (aligned,) = OtherRounding(expected).aligned([one(-NOISE, -0.09)])
    assert gaps_between(expected[0], aligned) == []


@pytest.mark.parametrize(("eps", "by"), [(0.0, EPS), (2 * EPS, 2 * EPS), (EPS / 2, EPS)])
def test_each_real_number_of_the_state_is_rounded_up_or_down(eps: float, by: float) -> None:
    weights, counts = torch.ones(64), torch.ones(4, dtype=torch.int64)
    with rounded_anew({"weights": weights, "counts": counts}, eps):
        assert set(weights.tolist()) == {1 - by, 1 + by}
    assert counts.tolist() == [1] * 4
