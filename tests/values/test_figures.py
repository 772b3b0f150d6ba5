"""Times, shares, ratios, bytes and counts as text, and text that is cut."""

from __future__ import annotations

import math

import pytest

from graphdoctor.values.figures import (
    Range,
    bytes_text,
    cost_text,
    count_text,
    joined,
    many_text,
    more_bytes_text,
    names_text,
    ratio_range,
    ratio_text,
    share_range,
    share_text,
    shortened,
    time_range,
    time_text,
)
from graphdoctor.values.locations import Location, bracketed, file_line, line_of, with_place

INFINITE = Range(1.0, 2.0, math.inf)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.0, "0 µs"),
        (0.126, "0.13 µs"),
        (9.99, "9.99 µs"),
        (10.04, "10 µs"),
        (99.94, "99.9 µs"),
        (150.4, "150 µs"),
        (999.0, "999 µs"),
        (1e3, "1 ms"),
        (1_230.0, "1.23 ms"),
        (999_000.0, "999 ms"),
        (1e6, "1 s"),
        (4_500_000.0, "4.5 s"),
        (1.2e10, "12,000 s"),
        (-1_500.0, "-1.5 ms"),
        (math.nan, "unknown"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_fits(time_us: float, text: str) -> None:
    assert time_text(time_us) == text


def test_a_range_keeps_its_bounds_in_the_unit_of_the_middle() -> None:
    assert time_range(Range(900, 1_200, 1_500)) == "1.2 ms (0.9 to 1.5 ms)"
    assert share_range(Range(0.5, 0.62, 0.7)) == "62% (50% to 70%)"
    assert ratio_range(Range(1.8, 2.4, 3.2)) == "2.4x (1.8x to 3.2x)"
    exact = Range.exact(0.25)
    assert (time_range(exact), share_range(exact), ratio_range(exact)) == (
        "0.25 µs",
        "25%",
        "0.25x",
    )


@pytest.mark.parametrize("text_of", [time_range, share_range, ratio_range])
def test_a_range_without_a_bound_is_unknown(text_of) -> None:
    assert text_of(INFINITE) == "unknown"


def test_shares_and_ratios_say_no_digit_that_is_nought() -> None:
    assert [share_text(share) for share in (0.0, 0.625, 1.0)] == ["0%", "62.5%", "100%"]
    assert [ratio_text(ratio) for ratio in (2.4, 12.34, math.inf)] == ["2.4x", "12.3x", "unknown"]


def test_a_cost_says_by_one_word_how_it_is_known() -> None:
    assert cost_text(Range(150, 300, 500), "predicted for an H100") == (
        "about 300 µs (150 to 500 µs), predicted"
    )
    assert cost_text(Range.exact(3), "") == "about 3 µs"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (9_940_000, "9.9 MB"),
        (9_950_000, "10 MB"),
        (1_240_000_000, "1.2 GB"),
        (3 * 10**15, "3,000 TB"),
    ],
)
def test_bytes_are_in_the_largest_unit_that_has_one_of_it(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_more_or_fewer_bytes_have_a_sign() -> None:
    assert [more_bytes_text(count) for count in (34_000_000, 0, -1)] == ["+34 MB", "0 B", "-1 B"]


def test_a_large_count_is_in_millions() -> None:
    assert [many_text(count) for count in (1_204, 99_999, 100_000, 1_200_000)] == [
        "1,204", "99,999", "0.1 M", "1.2 M",
    ]  # fmt: skip


def test_a_list_names_the_first_and_counts_the_rest() -> None:
    names = ["a", "b", "c", "d", "e"]
    assert [names_text(names[:count]) for count in (1, 2, 3, 5)] == [
        "`a`", "`a` and `b`", "`a`, `b` and `c`", "`a`, `b`, `c` and 2 more",
    ]  # fmt: skip
    assert [joined(names[:count]) for count in (0, 1, 2, 3)] == ["", "a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "launch", "1 launch"),
        (0, "launch", "0 launches"),
        (12_000, "operator", "12,000 operators"),
        (2, "entry", "2 entries"),
        (3, "delay", "3 delays"),
        (2, "graph break", "2 graph breaks"),
        (2, "box", "2 boxes"),
        (2, "class", "2 classes"),
    ],
)
def test_a_count_has_its_noun_in_the_right_number(count: int, noun: str, text: str) -> None:
    assert count_text(count, noun) == text


def test_only_long_text_is_shortened_and_then_to_the_length_that_is_allowed() -> None:
    assert shortened("x" * 60) == "x" * 60
    assert shortened("x" * 61) == "x" * 57 + "..."
    assert shortened("abcdef", most=5) == "ab..."


def test_a_line_is_named_without_the_folders_of_this_machine() -> None:
    place = Location("/home/someone/models/train.py", 31)
    assert file_line(place) == "train.py:31"
    assert (line_of(place), line_of(None)) == ("line 31 of train.py", "the step")
    assert (bracketed(place), bracketed(None)) == (" (train.py:31)", "")
    assert with_place("it waits. ", place) == "it waits in line 31 of train.py"
    assert with_place("it waits.", None) == "it waits"
