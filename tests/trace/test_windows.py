"""Which window each moment lies in, whatever the order of the moments and however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from graphdoctor.trace.windows import OUTSIDE, Window, window_of

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
