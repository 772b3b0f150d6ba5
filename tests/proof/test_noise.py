"""What eager's own drifts explain of a replay's differences, and what they do not."""

from __future__ import annotations

from graphdoctor.graphs.compare import Gap
from graphdoctor.proof.noise import Noise

EPS = 2.0**-23


def gap(path: str, relative: float, *, scale: float = 1.0) -> Gap:
    return Gap(path, max_abs=relative * scale, max_rel=relative, scale=scale, eps=EPS)


def test_without_drifts_nothing_is_noise() -> None:
    assert not Noise(()).explains(gap("model.weight.grad", 1e-7))


def test_a_tensor_that_stood_still_may_move_as_others_of_its_kind() -> None:
    noise = Noise([gap("model.0.weight.grad", 1e-6, scale=10.0)])
    assert noise.explains(gap("model.1.weight.grad", 3e-6, scale=0.001))
    assert not noise.explains(gap("model.1.weight.grad", 5e-6, scale=0.001))


def test_another_kind_of_tensor_is_not_explained() -> None:
    noise = Noise([gap("model.0.weight.grad", 1e-5)])
    assert not noise.explains(gap("model.0.weight", 1e-6))
    assert not noise.explains(gap("output.loss", 1e-6))


def test_each_sort_of_optimizer_state_is_a_kind() -> None:
    noise = Noise([gap("optimizer.state[model.0.weight].exp_avg_sq", 1e-5)])
    assert noise.explains(gap("optimizer.state[model.1.weight].exp_avg_sq", 2e-5))
    assert not noise.explains(gap("optimizer.state[model.1.weight].exp_avg", 2e-5))


def test_tensors_that_drift_far_explain_no_more_than_half_the_digits_of_others() -> None:
    noise = Noise([gap("model.0.weight", 0.009)])
    assert noise.explains(gap("model.1.weight", 3e-4))
    assert not noise.explains(gap("model.1.weight", 5e-4))


def test_a_wild_tensor_sets_no_measure_for_others() -> None:
    noise = Noise([gap("model.0.weight", 0.5)])
    assert not noise.explains(gap("model.1.weight", 1e-6))


def test_a_difference_in_kind_is_never_noise() -> None:
    noise = Noise([gap("output", 1e-3)])
    assert not noise.explains(Gap("output", detail="shape (2,) in eager, (3,) in the replay"))
