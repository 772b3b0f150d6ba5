"""Which differences another algorithm explains: half of the digits, and gradients that are all rounding."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.other_rounding import OtherRounding, largest_gradient_of

EPS = 2.0**-23


def after(**tensors: float) -> Footprint:
    """What a step left behind; "_grad" stands for ".grad"."""
    named: Mapping[str, torch.Tensor] = {
        name.replace("_grad", ".grad"): torch.tensor([value]) for name, value in tensors.items()
    }
    return Footprint(dict(named), {}, {})


def gap(path: str, max_abs: float, *, scale: float = 1e-9, detail: str = "") -> Gap:
    return Gap(path, max_abs, 1.0, detail, scale, EPS)


def test_the_largest_gradient_is_the_scale_of_rounding() -> None:
    seen = [after(a_grad=-3.0, a=9.0), after(a_grad=2.0, b_grad=0.5)]
    assert largest_gradient_of(seen) == 3.0
    assert largest_gradient_of([after(a=9.0)]) == 0.0


@pytest.mark.parametrize(("max_abs", "is_far"), [(4 * EPS, False), (4.1 * EPS, True)])
def test_a_gradient_as_large_as_the_rounding_around_it_is_explained(
    max_abs: float, is_far: bool
) -> None:
    judge = OtherRounding([after(k_grad=0.0, w_grad=4.0)])
    (far,) = judge.beyond([[gap("k.grad", max_abs)]])
    assert bool(far) == is_far


@pytest.mark.parametrize(
    ("step", "max_abs", "is_far"),
    [(0, 0.02, False), (0, 0.021, True), (1, 0.04, False), (1, 0.041, True)],
)
def test_what_moves_by_such_a_gradient_is_explained_as_far_as_eager_moves_it(
    step: int, max_abs: float, is_far: bool
) -> None:
    """Both ways, by the largest of eager's own moves, in each step so far."""
    ran = [
        after(k=1.0, k_grad=0.0, w_grad=4.0), after(k=1.01, k_grad=0.0, w_grad=4.0),
        after(k=1.015, k_grad=0.0, w_grad=4.0),
    ]  # fmt: skip
    steps: list[list[Gap]] = [[], []]
    steps[step] = [gap("k.grad", EPS), gap("k", max_abs - 1e-6)]
    far = OtherRounding(ran).beyond(steps)
    assert [[one.path for one in found] for found in far][step] == (["k"] if is_far else [])


def test_what_differs_otherwise_is_not_explained() -> None:
    judge = OtherRounding([after(k=1.0, w_grad=4.0), after(k=1.01, w_grad=4.0)])
    lone = gap("k", 0.001)  # its gradient does not differ
    kind = gap("k.grad", 0.0, detail="shape (1,) in eager, (2,) in the replay")
    moved = gap("other", 0.001)
    assert judge.beyond([[lone], [kind], [gap("k.grad", EPS), moved]]) == [[lone], [kind], [moved]]


def test_the_coarsest_product_tells_how_many_digits_there_are() -> None:
    found = gap("output", 1e-3, scale=1.0)
    assert OtherRounding([after(a=1.0)]).beyond([[found]]) != [[]]
    assert OtherRounding([after(a=1.0)], eps=2.0**-10).beyond([[found]]) == [[]]
