"""What is known of a window of a program that keeps running."""

from __future__ import annotations

import pytest

from graphdoctor.values.watched import SampledCalls


@pytest.mark.parametrize(
    ("calls", "lacks"),
    [
        (SampledCalls(), False),
        (SampledCalls(launches=2, operations=2), False),
        (SampledCalls(launches=2), True),
        (SampledCalls(graph_launches=1), True),
        (SampledCalls(launches=2, graph_launches=2), True),
    ],
)
def test_launches_without_their_work_are_noticed(calls: SampledCalls, lacks: bool) -> None:
    assert calls.lacks_work is lacks
