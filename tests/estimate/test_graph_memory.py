"""What a graph would hold, each figure worked out by hand; on a GPU beside what its pool holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.graph_memory import graph_memory
from graphdoctor.values.recording import Iteration
from graphdoctor.values.speed import GraphMemory
from tests.support.builders import external, iteration, op, tensor

MIB = 1 << 20
GIVEN, WEIGHT = tensor(1, 256, 1024), tensor(2, 1024, 1024)  # 1 and 4 MiB
FIRST, SECOND, THIRD = (tensor(storage, 256, 1024) for storage in (3, 4, 5))


def step(*, phase: str = "forward") -> Iteration:
    """Three operators in a row: at most two of their results are alive at one time."""
    return iteration(
        [
            op("aten.mm.default", (GIVEN, WEIGHT), (FIRST,)),
            op("aten.relu.default", (FIRST,), (SECOND,)),
            op("aten.mm.default", (SECOND, WEIGHT), (THIRD,), phase=phase),  # type: ignore[arg-type]
        ],
        externals=[external(1, "inputs[0]"), external(2, "model.weight")],
        inputs=[GIVEN],
        outputs=[THIRD],
    )


def found(recorded: Iteration, gpu: str = "h200") -> GraphMemory:
    return graph_memory(recorded, load_profile(gpu))


def test_inputs_outputs_and_what_lives_between_them() -> None:
    memory = found(step())
    assert (memory.inputs_bytes, memory.outputs_bytes) == (MIB, MIB)
    assert memory.intermediates_bytes == MIB
    assert memory.pool_bytes == 2 * MIB  # one segment of small blocks, used again
    assert memory.workspace_bytes == 32 * MIB
    assert memory.total_bytes == 35 * MIB


def test_state_is_nobodys_but_the_models() -> None:
    assert found(step()).pool_bytes < WEIGHT.nbytes


def test_a_measured_pool_stands_in_the_place_of_a_predicted_one() -> None:
    memory = GraphMemory(1, 2, 3, 100, 10, measured_bytes=50)
    assert memory.total_bytes == 61


def test_other_gpus_have_a_smaller_workspace_and_steps_without_products_none() -> None:
    assert found(step(), "a100").workspace_bytes == 8_519_680
    assert found(step(), "mi300x").workspace_bytes == 0
    only = iteration(
        [op("aten.relu.default", (GIVEN,), (FIRST,))],
        externals=[external(1, "inputs[0]")],
        inputs=[GIVEN],
        outputs=[FIRST],
    )
    assert found(only).workspace_bytes == 0


def test_gradients_that_nobody_reads_are_kept() -> None:
    """What the backward pass leaves for an optimizer outside the step stays alive."""
    gradients = [tensor(storage, 3 * 256, 1024) for storage in (11, 12, 13)]
    ops = [op("aten.mm.default", (GIVEN, WEIGHT), (FIRST,))]
    ops += [op("aten.mm.default", (FIRST, WEIGHT), (each,), phase="backward") for each in gradients]
    recorded = iteration(
        ops, externals=[external(1, "inputs[0]"), external(2, "model.weight")], inputs=[GIVEN]
    )
    assert found(recorded).intermediates_bytes == 10 * MIB


def test_what_lies_on_the_host_takes_none() -> None:
    host = tensor(7, 1024, 1024, device="cpu")
    recorded = iteration([op("aten.relu.default", (host,), (host,))], inputs=[host], outputs=[host])
    assert found(recorded) == GraphMemory(0, 0, 0, 0, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_pool_is_about_as_large_as_predicted(mode: str) -> None:
    torch.manual_seed(1)
    blocks = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model = nn.Sequential(*blocks).cuda()
    given = torch.randn(8192, 1024, device="cuda")
    report = graphdoctor.analyze(model, given, mode=mode, strategies=())
    memory = report.memory
    assert memory is not None and memory.measured_bytes is not None
    assert memory.measured_bytes == pytest.approx(memory.pool_bytes, rel=0.3)
