"""Which window each moment lies in, whatever the order of the moments and however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace.intervals import OUTSIDE, Window, covered_ns_of, union, window_of

WINDOWS: list[Window] = [(400, 600), (0, 100), (600, 601)]


def by_hand(moment: int, closed: str) -> int:
    for place, (low, high) in enumerate(WINDOWS):
        if low <= moment < high if closed == "left" else low < moment <= high:
            return place
    return OUTSIDE


@pytest.mark.parametrize("closed", ["left", "right"])
@pytest.mark.parametrize("count", [5, 400])
@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_each_moment_is_in_its_window(order: str, count: int, closed: str) -> None:
    moments = np.linspace(-30, 700, count).round().astype(np.int64)
    assert (np.diff(moments) > 0).all()
    if order == "falling":
        moments = moments[::-1].copy()
    elif order == "mixed":
        moments = np.random.default_rng(0).permutation(moments)
    found = window_of(moments, WINDOWS, closed=closed)
    assert found.tolist() == [by_hand(moment, closed) for moment in moments.tolist()]


def test_without_windows_all_are_outside() -> None:
    assert window_of(np.arange(3), []).tolist() == [OUTSIDE] * 3


def stretches(*pairs: Window) -> tuple[np.ndarray, np.ndarray]:
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


@pytest.mark.parametrize(
    ("pairs", "apart"),
    [
        ([], []),
        ([(0, 5)], [(0, 5)]),
        ([(0, 5), (5, 9)], [(0, 9)]),  # without a moment between them
        ([(0, 5), (6, 9)], [(0, 5), (6, 9)]),
        ([(0, 9), (2, 4), (5, 10), (11, 12)], [(0, 10), (11, 12)]),
        ([(0, 2), (1, 3), (4, 4)], [(0, 3), (4, 4)]),
    ],
)
def test_stretches_that_touch_become_one(pairs: list[Window], apart: list[Window]) -> None:
    start, end = union(*stretches(*pairs))
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == apart


@pytest.mark.parametrize("pairs", [[], [(10, 20)], [(0, 5), (10, 20), (20, 21), (40, 60)]])
def test_time_in_stretches_is_counted_moment_by_moment(pairs: list[Window]) -> None:
    edges = np.arange(-2, 64, 3)
    start, end = (each.ravel() for each in np.meshgrid(edges, edges))
    found = covered_ns_of(stretches(*pairs), start, end)
    inside = [sum(low <= moment < high for low, high in pairs) for moment in range(-2, 64)]
    for low, high, time in zip(start.tolist(), end.tolist(), found.tolist(), strict=True):
        assert time == sum(inside[low + 2 : high + 2]), (low, high)
