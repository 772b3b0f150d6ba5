"""How far two tensors are apart, and what counts as noise."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from graphdoctor.graphs import compare
from graphdoctor.graphs.compare import (
    Gap,
    gap_between,
    has_same_bits,
    have_same_bits,
    is_noise,
)

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EXACT = [torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*FLOATS, *EXACT, torch.complex64])
def test_equal_tensors_have_no_gap(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)

    assert gap_between("t", tensor, tensor.clone()) is None
    assert has_same_bits(tensor, tensor.clone())


@pytest.mark.parametrize("dtype", [*FLOATS, *EXACT, torch.complex64])
def test_one_changed_element_is_a_gap(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    other = torch.tensor([0, 1, 0, 0]).to(dtype)

    gap = gap_between("t", tensor, other)

    assert gap is not None
    assert (gap.max_abs, gap.max_rel, gap.is_measurable) == (1.0, 1.0, True)


def test_the_smallest_difference_is_seen() -> None:
    one = torch.tensor(1.0)

    gap = gap_between("t", one, torch.nextafter(one, torch.tensor(2.0)))

    assert gap is not None
    assert gap.max_abs == torch.finfo(torch.float32).eps


def test_the_largest_absolute_and_relative_distance_may_be_in_different_elements() -> None:
    gap = gap_between("t", torch.tensor([100.0, 0.5, 0.0]), torch.tensor([96.0, -0.5, 0.0]))

    assert gap is not None
    assert (gap.max_abs, gap.max_rel, gap.scale) == (4.0, 2.0, 100.0)


@pytest.mark.parametrize("place", [0, 1])
def test_a_subclass_is_compared_by_each_tensor_that_it_wraps(place: int) -> None:
    def both(*values: float) -> torch.Tensor:
        return TwoTensor(*(torch.full((2,), float(value)) for value in values))

    changed = [1.0, 2.0]
    changed[place] += 1

    gap = gap_between("t", both(1, 2), both(*changed))

    assert gap is not None and (gap.path, gap.max_abs) == ("t", 1.0)
    assert not has_same_bits(both(1, 2), both(*changed))
    assert gap_between("t", both(1, 2), both(1, 2)) is None
    assert has_same_bits(both(1, 2), both(1, 2))


def test_signed_zeros_differ() -> None:
    gap = gap_between("t", torch.tensor([0.0]), torch.tensor([-0.0]))

    assert gap is not None
    assert gap.max_abs == 0.0


def test_nan_equals_nan_of_any_payload() -> None:
    usual = torch.tensor([math.nan, 1.0])
    other = usual.clone()
    other.view(torch.int32)[0] += 1

    assert other.isnan()[0]
    assert gap_between("t", usual, other) is None


def test_nan_against_a_number_is_no_distance() -> None:
    gap = gap_between("t", torch.tensor([math.nan, 1.0, 3.0]), torch.tensor([1.0, 1.0, 3.5]))

    assert gap is not None
    assert gap.max_abs == 0.5
    assert gap.detail == "not finite on one side in 1 elements"
    assert not gap.is_measurable


@pytest.mark.parametrize(
    ("other", "detail"),
    [
        (torch.zeros(3), "shape (2,) in eager, (3,) in the replay"),
        (torch.zeros(2, dtype=torch.float64), "dtype torch.float32 in eager"),
        (torch.zeros(2, device="meta"), "device cpu in eager, meta"),
    ],
)
def test_another_kind_of_tensor_is_said_in_words(other: torch.Tensor, detail: str) -> None:
    gap = gap_between("t", torch.zeros(2), other)

    assert gap is not None
    assert detail in gap.detail
    assert not has_same_bits(torch.zeros(2), other)


def test_sparse_and_strided_views_are_compared_by_value() -> None:
    dense = torch.eye(3)

    assert gap_between("t", dense.to_sparse(), dense.to_sparse()) is None
    assert gap_between("t", dense.to_sparse(), (2 * dense).to_sparse()) is not None
    assert gap_between("t", torch.ones(4, 3).t(), torch.ones(3, 4)) is None


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_a_gap_s_numbers_are_always_finite(values: list[float]) -> None:
    expected = torch.tensor(values)

    gap = gap_between("t", expected, expected.flip(0) * 2 + 1)

    if gap is not None:
        assert math.isfinite(gap.max_abs) and 0.0 <= gap.max_rel <= 2.0


def test_a_few_units_in_the_last_place_are_rounding() -> None:
    expected = torch.full((4,), 3.0)
    ulp = 2 * torch.finfo(torch.float32).eps

    near = gap_between("t", expected, expected + ulp)
    far = gap_between("t", expected, expected + 20 * ulp)

    assert near is not None and near.is_rounding
    assert far is not None and not far.is_rounding
    assert far.is_within_half_the_digits


def test_noise_is_a_few_times_what_the_same_tensor_drifts_by() -> None:
    gap = Gap("t", max_abs=0.02, scale=3.0)

    assert is_noise(gap, [Gap("t", max_abs=0.006, scale=3.0)])
    assert not is_noise(gap, [Gap("t", max_abs=0.004, scale=3.0)])
    assert not is_noise(gap, [Gap("another", max_abs=0.006, scale=3.0)])
    assert not is_noise(gap, [])


def test_a_tensor_that_drifts_by_more_than_a_hundredth_is_not_noisy_but_unsteady() -> None:
    assert not is_noise(Gap("t", max_abs=0.1, scale=3.0), [Gap("t", max_abs=0.1, scale=3.0)])


def test_integers_and_differences_in_kind_are_never_noise() -> None:
    integers = gap_between("t", torch.tensor([1000]), torch.tensor([1001]))

    assert integers is not None and not integers.is_rounding
    odd = Gap("t", detail="eager leaves this tensor behind")
    assert not odd.is_rounding and not is_noise(odd, [Gap("t", max_abs=1.0, scale=1e9)])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_many_pairs_are_told_apart_in_one_go(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_is_plain_on_gpu", lambda tensor: on_gpu)
    ones, nan = torch.ones(3), torch.tensor([math.nan])
    changed = torch.tensor([1.0, 1.0, 1.5])
    pairs = [
        (ones, ones.clone()),
        (ones, changed),
        (torch.zeros(1), -torch.zeros(1)),
        (nan, nan.clone()),
        (ones, torch.ones(2)),
        (ones, ones.double()),
        (torch.empty(0), torch.empty(0)),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j])),
    ]

    found = have_same_bits(pairs)

    assert found == [has_same_bits(*pair) for pair in pairs]
    assert found == [True, False, False, True, False, False, True, False]


def test_a_subclass_on_a_gpu_is_compared_by_each_tensor_that_it_wraps_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGpu(TwoTensor):
        is_cuda = True

    monkeypatch.setattr(compare, "lies_on_cpu", lambda tensor: False)
    one, other = (OnGpu(torch.ones(2), torch.full((2,), value)) for value in (2.0, 3.0))

    assert have_same_bits([(one, other), (one, one)]) == [False, True]


def test_quantized_tensors_of_equal_integers_and_other_scales_are_not_equal() -> None:
    values = torch.tensor([1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch will drop these dtypes
        one = torch.quantize_per_tensor(values, 1.0, 0, torch.qint8)
        twice = torch.quantize_per_tensor(values * 2, 2.0, 0, torch.qint8)

    assert has_same_bits(one, one.clone()) and not has_same_bits(one, twice)
    gap = gap_between("t", one, twice)
    assert gap is not None and gap.max_abs == 2.0
