"""A step of several ranks under the profiler: waiting for a rank that comes late is no work of the device."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.estimate import estimate
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.measure import speed
from graphdoctor.measure.speed import _times, estimate_of_ranks
from graphdoctor.trace.explain.ranks import RankLane
from tests.support.builders import iteration, op, tensor

US = 1000


def lane(collectives: list[tuple[int, int]], work: list[tuple[int, int]]) -> RankLane:
    """Stretches in us."""

    def columns(stretches: list[tuple[int, int]]) -> tuple[Any, Any]:
        low, high = zip(*stretches, strict=True) if stretches else ((), ())
        return np.array(low, np.int64) * US, np.array(high, np.int64) * US

    start, end = columns(collectives)
    return RankLane(
        kinds=("allreduce",) * len(start),
        groups=((0, 1),) * len(start),
        start_ns=start,
        end_ns=end,
        work_ns=columns(work),
        busy_ns=columns(work),
        begin_ns=0,
    )


class WithOneOther(Meeting):
    """`theirs` are the collectives of the other rank, which hears of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs: list[tuple[int, int]] = []

    def answers(self, mine: Any, kind: Any) -> Any:
        return [mine, [[each[i] * US for each in self.theirs] for i in range(2)]]


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> WithOneOther:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    return WithOneOther()


def test_a_collective_works_from_when_the_last_rank_has_come(other: WithOneOther) -> None:
    other.theirs += [(60, 80), (190, 240)]
    found = _times(lane([(10, 80), (200, 240)], [(0, 20), (70, 100)]), 1, other)
    assert found is not None
    assert found.compute_us == 50  # 20 and 30
    assert found.network_us == 60  # 20 and 40
    assert found.busy_us == 100  # 70 to 80 is both
    assert found.waiting_us == 50  # for the other rank, which came 50 us later to the first


def test_times_are_those_of_one_step(other: WithOneOther) -> None:
    other.theirs += [(10, 30), (110, 130)]
    found = _times(lane([(10, 30), (110, 130)], [(0, 10), (100, 110)]), 2, other)
    assert found is not None
    assert (found.compute_us, found.network_us, found.busy_us, found.waiting_us) == (10, 20, 30, 0)


@pytest.mark.parametrize("theirs", [[], [(0, 5), (6, 8)]])
def test_ranks_that_saw_other_collectives_have_no_times(
    other: WithOneOther, theirs: list[tuple[int, int]]
) -> None:
    other.theirs += theirs
    assert _times(lane([(0, 5)], [(0, 5)]), 1, other) is None


def test_ranks_of_several_hosts_have_no_clock_in_common(
    other: WithOneOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    other.theirs += [(0, 5)]
    assert _times(lane([(0, 5)], [(0, 5)]), 1, other) is None


def test_the_estimate_calls_measured_what_was_and_takes_a_graph_to_wait_for_nobody(
    other: WithOneOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.theirs += [(60, 80)]
    h200 = load_profile("h200")
    step = iteration([op("aten.relu.default", [tensor(1, 8)], [tensor(2, 8)])])
    traced = msgspec.structs.replace(estimate(step, h200), basis="measured", launches=100)
    monkeypatch.setattr(speed, "rank_lane", lambda trace: lane([(10, 80)], [(0, 20), (70, 100)]))
    monkeypatch.setattr(speed, "estimate_from_trace", lambda *args: traced)
    trace: Any = None
    found = estimate_of_ranks(trace, 500.0, h200, steps=1, meeting=other)
    assert found is not None
    assert found.basis == "measured"
    assert found.device_busy_us.mid == 60  # 0 to 20, and 60 to 100
    assert found.graph_us.low == 50
    assert found.graph_us.mid == pytest.approx(60 + 100 * h200.node_gap_us.mid)
    assert found.graph_us.high <= 500.0
    assert found.launch_bound_share.mid == pytest.approx(1 - found.graph_us.mid / 500.0)
    assert found.speedup.mid == pytest.approx(500.0 / found.graph_us.mid)
    assert "waits for other ranks for 50" in found.notes[0]
