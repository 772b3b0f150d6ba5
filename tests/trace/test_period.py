"""Which steps are of one kind, by the names and numbers of their kernels."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace.steps import OTHER, kinds_of


def kinds(*steps: str) -> list[int]:
    """Steps as kernels, a letter each."""
    names = np.array([ord(letter) - ord("a") for step in steps for letter in step], np.int64)
    owner = np.array([place for place, step in enumerate(steps) for _ in step], np.int64)
    return kinds_of(names, owner, len(steps))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("aaaaaaa", "aaaaaaabbb", True),  # seven of all ten
        ("aaaaaab", "aaaaaabbbb", True),
        ("aaaaaa", "aaaaaabbbb", False),  # six of all ten
        ("abcdefg", "gfedcba", True),  # in any order
        ("ab", "aabb", False),  # how often counts
        ("a", "b", False),
    ],
)
def test_two_steps_are_of_a_kind_that_have_seven_of_ten_kernels_in_common(
    one: str, other: str, is_same: bool
) -> None:
    assert kinds(one, other) == [0, 0 if is_same else 1]
    assert kinds(other, one) == [0, 0 if is_same else 1]


def test_a_step_is_compared_with_the_first_of_each_kind() -> None:
    assert kinds("aaaa", "bbbb", "aaab", "bbba", "cccc", "aaaa") == [0, 1, 2, 3, 4, 0]


def test_a_step_without_kernels_is_of_no_kind_and_makes_none() -> None:
    assert kinds("aa", "", "bb") == [0, OTHER, 1]
    nothing = np.zeros(0, np.int64)
    assert kinds_of(nothing, nothing, 2) == [OTHER, OTHER]


def test_kernels_of_no_step_count_for_none() -> None:
    names, owner = np.array([0, 1, 1, 1, 0]), np.array([0, -1, -1, -1, 1])
    assert kinds_of(names, owner, 2) == [0, 0]
