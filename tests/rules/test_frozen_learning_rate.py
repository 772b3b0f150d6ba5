"""A schedule that advances inside of the step, and has not changed the rate yet."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec import structs

from graphdoctor.rules.frozen_learning_rate import FrozenLearningRate
from graphdoctor.values.recording import Op, OptimizerInfo, StateChange
from tests.support.builders import iteration, op, recording

STEP = op("aten.add_.Tensor", phase="optimizer")


@pytest.mark.parametrize(
    ("ops", "path", "lr_kind", "hits"),
    [
        ([STEP], "schedule.last_epoch", "float", 1),
        ([STEP], "schedule.last_epoch", "tensor", 0),
        ([STEP], "schedule.calls", "float", 0),
        ([op("aten.relu.default")], "schedule.last_epoch", "float", 0),
    ],
)
def test_a_schedule_beside_an_optimizer_with_a_plain_rate_is_found_before_the_rate_changes(
    ops: list[Op], path: str, lr_kind: Literal["float", "tensor"], hits: int
) -> None:
    change = StateChange(path, "1", "2", "value")
    step = structs.replace(iteration(ops), changes=(change,))
    optimizer = OptimizerInfo("optimizer", "SGD", capturable=None, fused=False, lr_kind=lr_kind)
    seen = structs.replace(recording(step), optimizers=(optimizer,))
    found = list(FrozenLearningRate().check(seen))
    assert len(found) == hits
    assert all(hit.message.startswith("schedule advances inside the step") for hit in found)
