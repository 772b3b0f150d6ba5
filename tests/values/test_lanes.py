"""A step's end is the later end of its two lanes."""

from __future__ import annotations

import pytest

from graphdoctor.values.lanes import Placement, end_us


@pytest.mark.parametrize(
    ("placements", "end"),
    [
        ([], 0.0),
        ([Placement(0, 5, 0, 3, 10)], 13.0),
        ([Placement(0, 5, 20, 3, 10)], 25.0),
        ([Placement(0, 5, 0, 3, 10), Placement(5, 30, 0, 0, 0)], 35.0),
        ([Placement(5, 30, 0, 0, 0), Placement(0, 5, 0, 3, 10)], 35.0),
    ],
)
def test_a_step_ends_when_host_and_device_are_done(placements: list[Placement], end: float) -> None:
    assert end_us(iter(placements)) == end
