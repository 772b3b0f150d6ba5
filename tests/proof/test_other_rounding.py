"""What another algorithm for the same function may differ by from eager, and what it may not."""

from __future__ import annotations

import pytest
import torch

from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.other_rounding import OtherRounding, largest_gradient_of

EPS = 2.0**-23  # half of its digits: 2.0**-11.5


def left_behind(**tensors: list[float]) -> Footprint:
    return Footprint(
        {path.replace("__", "."): torch.tensor(values) for path, values in tensors.items()}, {}, {}
    )


def is_explained(*gaps: Gap, rounding: OtherRounding) -> bool:
    return not any(rounding.beyond([gaps]))


@pytest.mark.parametrize(
    ("gap", "is_rounding"),
    [
        (Gap("output", max_abs=3.4e-4, scale=1.0, eps=EPS), True),
        (Gap("output", max_abs=3.5e-4, scale=1.0, eps=EPS), False),
        # A gradient that ought to be 0 is as large as the rounding of the largest, which is 8.
        (Gap("model.key.bias.grad", max_abs=8 * EPS, scale=8 * EPS, eps=EPS), True),
        (Gap("model.key.bias.grad", max_abs=8.1 * EPS, scale=8 * EPS, eps=EPS), False),
        (Gap("model.key.bias", max_abs=8 * EPS, scale=8 * EPS, eps=EPS), False),
        (Gap("model.key.bias.grad", max_abs=8 * EPS, scale=8 * EPS, eps=EPS, detail="nan"), False),
    ],
)
def test_what_another_algorithm_may_differ_by(gap: Gap, is_rounding: bool) -> None:
    rounding = OtherRounding([left_behind(model__weight__grad=[-8.0, 1.0])])
    assert is_explained(gap, rounding=rounding) == is_rounding


def test_a_tensor_has_no_more_digits_than_the_products_that_it_comes_from() -> None:
    gap = Gap("output", max_abs=0.02, scale=1.0, eps=EPS)
    assert not is_explained(gap, rounding=OtherRounding([]))
    assert is_explained(gap, rounding=OtherRounding([], eps=2.0**-11))
    counts = Gap("output", max_abs=1.0, scale=100.0)  # whole numbers do not round
    assert not is_explained(counts, rounding=OtherRounding([], eps=2.0**-11))


KEY = "model.key.bias"
MOMENT = f"optimizer.state[{KEY}].exp_avg"


def steps() -> list[Footprint]:
    """The key's bias moves by 0.1 in a step, and its first moment by 1e-7."""
    return [
        Footprint(
            {
                "model.weight.grad": torch.tensor([8.0]),
                f"{KEY}.grad": torch.tensor([sign * 4 * EPS]),
                KEY: torch.tensor([value]),
                MOMENT: torch.tensor([sign * 5e-8]),
            },
            {},
            {},
        )
        for sign, value in ((1.0, 0.1), (-1.0, 0.0))
    ]


def gap_of(path: str, max_abs: float, scale: float) -> Gap:
    return Gap(path, max_abs=max_abs, scale=scale, eps=EPS)


def test_an_optimizer_moves_a_parameter_whose_gradient_is_all_rounding_either_way() -> None:
    rounding = OtherRounding(steps())
    gradient = gap_of(f"{KEY}.grad", 8 * EPS, 4 * EPS)
    assert is_explained(gradient, gap_of(KEY, 0.2, 0.1), rounding=rounding)
    assert is_explained(gradient, gap_of(MOMENT, 2e-7, 5e-8), rounding=rounding)
    # Farther than it moves in a step, to and fro, no optimizer brings it.
    assert not is_explained(gradient, gap_of(KEY, 0.21, 0.1), rounding=rounding)
    assert not is_explained(gradient, gap_of(MOMENT, 2.1e-7, 5e-8), rounding=rounding)


def test_a_parameter_whose_gradient_agrees_must_agree_too() -> None:
    rounding = OtherRounding(steps())
    digits = gap_of(f"{KEY}.grad", 4 * EPS * EPS, 4 * EPS)
    assert not is_explained(gap_of(KEY, 0.2, 0.1), rounding=rounding)
    assert not is_explained(digits, gap_of(KEY, 0.2, 0.1), rounding=rounding)
    other = gap_of("model.query.bias.grad", 8 * EPS, 4 * EPS)
    assert not is_explained(other, gap_of(KEY, 0.2, 0.1), rounding=rounding)


def test_what_follows_from_a_gradient_of_0_is_told_from_half_the_digits() -> None:
    gradient, moved = gap_of(f"{KEY}.grad", 8 * EPS, 4 * EPS), gap_of(KEY, 0.2, 0.1)
    rounded = gap_of("model.query.bias", 1e-4, 1.0)
    rounding = OtherRounding(steps())
    assert rounding.beyond_zero_gradients([[gradient, rounded, moved]]) == [[rounded]]
    assert rounding.beyond([[gradient, rounded, moved]]) == [[]]


def test_runs_part_farther_with_every_step() -> None:
    step = [gap_of(f"{KEY}.grad", 8 * EPS, 4 * EPS), gap_of(KEY, 0.4, 0.1)]
    first, second = OtherRounding(steps()).beyond([step, step])
    assert [gap.path for gap in first] == [KEY]
    assert second == []


def test_of_a_single_step_it_is_not_known_how_far_it_moves() -> None:
    step = [gap_of(f"{KEY}.grad", 8 * EPS, 4 * EPS), gap_of(KEY, 0.2, 0.1)]
    assert not is_explained(*step, rounding=OtherRounding(steps()[:1]))


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
