"""A schedule that advances inside of the step, and has not changed the rate yet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

from graphdoctor.rules.causes.numbers import stored_rate_advice
from graphdoctor.rules.frozen_learning_rate import FrozenLearningRate
from graphdoctor.values.locations import Location
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


def test_the_statement_that_stores_a_rate_is_given_whole(tmp_path: Path) -> None:
    """A reader pastes it."""
    file = tmp_path / "train.py"
    line = "optimizer.param_groups[0]['lr'] = base_rate * (1 - epoch / number_of_epochs) ** power"
    file.write_text(f"{line}\noptimizer.step()\n", encoding="utf-8")
    target, value = line.split(" = ")
    assert f"`{target}.fill_({value})`" in stored_rate_advice([Location(str(file), 2)])
