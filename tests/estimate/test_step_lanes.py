"""A step on its two lanes: where each operator lies, and what graphs take over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.estimate import estimate, step_lanes
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.values.host_events import HostEvent, Sync
from graphdoctor.values.lanes import EagerOperator, StepLanes
from graphdoctor.values.recording import Iteration, Op
from tests.support.builders import iteration, op, tensor

H100 = load_profile("h100")


def adds(count: int) -> list[Op]:
    return [
        op(
            "aten.add.Tensor",
            [tensor(number, 64)],
            [tensor(number + 1, 64)],
            module=f"part{number % 2}",
        )
        for number in range(count)
    ]


def step(count: int = 6, *events: HostEvent) -> Iteration:
    return replace(iteration(adds(count)), events=events)


def host_end(one: EagerOperator) -> float:
    return one.at.host_at_us + one.at.host_us + one.at.waited_us


def test_operators_follow_each_other_on_both_lanes() -> None:
    lanes = step_lanes(step(), H100)
    for before, after in zip(lanes.eager, lanes.eager[1:], strict=False):
        assert after.at.host_at_us == pytest.approx(host_end(before), abs=0.02)
        assert after.at.device_at_us >= before.at.device_at_us + before.at.device_us
    assert all(one.at.device_at_us > one.at.host_at_us for one in lanes.eager)


def test_lanes_add_up_to_the_estimate() -> None:
    recorded = step(40)
    lanes, predicted = step_lanes(recorded, H100), estimate(recorded, H100)
    assert sum(one.at.device_us for one in lanes.eager) == pytest.approx(
        predicted.device_busy_us.mid, rel=0.01
    )
    assert sum(one.at.host_us for one in lanes.eager) == pytest.approx(
        predicted.host_us.mid, rel=0.01
    )
    assert sum(one.kernels for one in lanes.eager) == predicted.launches
    # One step that begins with an idle device takes no less than one of many in a row.
    assert lanes.eager_us >= predicted.eager_us.mid * 0.999


def test_host_waits_where_the_step_does() -> None:
    event = Sync("torch.cuda.synchronize", op_index=3)
    waiting = [one.at.waited_us > 0.0 for one in step_lanes(step(6, event), H100).eager]
    assert waiting == [False, False, True, False, False, False]
    last = Sync("torch.cuda.synchronize", op_index=6)
    assert step_lanes(step(6, last), H100).eager[-1].at.waited_us > 0.0


def test_whole_step_is_one_graph() -> None:
    lanes = step_lanes(step(), H100)
    assert lanes.graphs == ("whole step",)
    assert {one.graph for one in lanes.eager} == {0}
    ran = [(work.what, work.number) for work in lanes.captured if work.what != "copy"]
    assert ran == [("graph", 0)]
    assert lanes.captured_us < lanes.eager_us


def test_regions_take_over_their_operators_and_leave_the_rest() -> None:
    lanes = step_lanes(step(), H100, [(0, 1), (4, 5)], names=["region A", "region C"])
    assert [one.graph for one in lanes.eager] == [0, 0, -1, -1, 1, 1]
    ran = [(work.what, work.number) for work in lanes.captured if work.what != "copy"]
    assert ran == [("graph", 0), ("operator", 2), ("operator", 3), ("graph", 1)]


def test_without_graphs_there_is_only_the_eager_step() -> None:
    lanes = step_lanes(step(), H100, [], names=[])
    assert (lanes.graphs, lanes.captured) == ((), ()) and len(lanes.eager) == 6


def test_each_text_is_there_once() -> None:
    lanes = step_lanes(step(50), H100)
    assert lanes.names == ("aten.add.Tensor",)
    assert (lanes.modules, lanes.files) == (("part0", "part1"), ("model.py",))
    assert isinstance(lanes, StepLanes)


def test_a_wait_at_the_end_is_all_that_the_last_operator_has_beside_its_own() -> None:
    waiting, free = (
        step_lanes(step(6, *events), H100).eager
        for events in ([Sync("synchronize", op_index=6)], [])
    )
    assert [each.at for each in waiting[:-1]] == [each.at for each in free[:-1]]
    assert replace(waiting[-1].at, waited_us=free[-1].at.waited_us) == free[-1].at
    assert waiting[-1].at.waited_us > free[-1].at.waited_us
