"""Whole numbers and times out of whatever a writer put in their place."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.trace.read.columns import correlations, integers, ns

LIMIT = 2**62  # what no counter reaches


@pytest.mark.parametrize(
    ("value", "number"),
    [("7", 7), (7.9, 7), ("x", 0), (None, 0), (float("inf"), 0), (LIMIT - 1, LIMIT - 1),
     (str(LIMIT), 0), (str(-LIMIT), 0), (str(1 - LIMIT), 1 - LIMIT), (2**70, 0), ([], 0), ({}, 0)],
)  # fmt: skip
def test_one_odd_number_does_not_spoil_the_others(value: Any, number: int) -> None:
    assert integers([5, value, None, -5]).tolist() == [5, number, 0, -5]
    assert integers([5, -5]).tolist() == [5, -5]


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), (None, -1), (LIMIT, -1), (LIMIT - 1, LIMIT - 1), (2**70, -1)],
)
def test_an_id_that_is_missing_or_too_large_joins_nothing(value: Any, number: int) -> None:
    args = [SimpleNamespace(correlation=one) for one in (3, value, None)]
    assert correlations([*args, None]).tolist() == [3, number, -1, -1]
    assert correlations([*args[:1], None]).tolist() == [3, -1]


LARGEST_US = 9 * 10**15


@pytest.mark.parametrize("kind", [int, float, Decimal])
def test_times_beyond_285_years_are_left_out_and_counted(kind: type) -> None:
    inside, outside = LARGEST_US - 1, LARGEST_US
    found, lost = ns([kind(1), kind(inside), kind(outside), kind(-outside), kind(-inside)])
    assert found.tolist() == [1000, inside * 1000, 0, 0, -inside * 1000]
    assert lost == 2


def test_a_number_that_no_float_holds_is_left_out_too() -> None:
    found, lost = ns([10**400, LARGEST_US, -LARGEST_US, LARGEST_US - 1, 1 - LARGEST_US, 2])
    whole_us = LARGEST_US - 1
    assert found.tolist() == [0, 0, 0, whole_us * 1000, -whole_us * 1000, 2000]
    assert lost == 3


@pytest.mark.parametrize("first", [Decimal("0.5"), 0.5])
@pytest.mark.parametrize("last", [Decimal("1.0005"), 1.0005])
def test_a_decimal_at_either_end_is_read_to_the_nanosecond(first: Any, last: Any) -> None:
    exact = [first, Decimal("1234567890123456.789"), last]
    if isinstance(first, Decimal) or isinstance(last, Decimal):
        assert ns(exact)[0].tolist()[1] == 1234567890123456789
    assert ns([first, 0.25, last])[0].tolist() == [500, 250, 1000]


def test_microseconds_are_rounded_to_whole_nanoseconds_on_both_sides_of_zero() -> None:
    assert ns([1.5, -1.5, 0.0004, 0.0006, 3])[0].tolist() == [1500, -1500, 0, 1, 3000]
