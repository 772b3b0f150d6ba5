"""What graphs of parts copy for their callers: each byte counted by hand."""

from __future__ import annotations

from typing import Literal

import pytest

from graphdoctor.estimate.calls import NO_CALLS, Calls, calling, copies_piece
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.values.recording import Iteration
from tests.support.builders import external, iteration, op, tensor

H200 = load_profile("h200")
FLOOR_US = H200.smallest_kernel_us.stream.mid
GB_S = H200.memory_gb_s.mid * H200.memory_share.stream.mid
MANY = 50_000_000  # elements: far above what a cache holds
WEIGHT, STATE, INPUT, BETWEEN, RESULT, LOSS, GRADIENT, RATE = range(1, 9)
FORWARD, TRAINED = [(0, 1)], [(0, 1), (3,)]


def copied_us(tensors: int, *, kernels: int) -> float:
    """So many tensors of that size, each read and written."""
    return tensors * 2 * 4 * MANY / 1e3 / GB_S + kernels * FLOOR_US


def step(*, writes: bool = False) -> Iteration:
    """A forward of two operators, a loss, a gradient and its optimizer."""
    return iteration(
        [
            op("aten.mul.Tensor", [tensor(INPUT, MANY), tensor(WEIGHT, MANY)], [tensor(BETWEEN, MANY)]),
            op("aten.add_.Tensor", [tensor(STATE, MANY), 1], [tensor(STATE, MANY)], writes=[STATE])
            if writes
            else op("aten.tanh.default", [tensor(BETWEEN, MANY)], [tensor(RESULT, MANY)]),
            op("aten.sum.default", [tensor(RESULT, MANY)], [tensor(LOSS)]),
            op("aten.mul.Tensor", [tensor(BETWEEN, MANY), 2.0], [tensor(GRADIENT, MANY)], phase="backward"),
            op("aten.add_.Tensor", [tensor(WEIGHT, MANY), tensor(GRADIENT, MANY)], writes=[WEIGHT], phase="optimizer"),
        ],
        externals=[external(WEIGHT, "model.weight"), external(STATE, "model.state"), external(INPUT, "inputs[0]")],
        outputs=[tensor(LOSS)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("regions", "by_dynamo", "tensors", "kernels"),
    [
        (FORWARD, False, 2, 2),  # the result, for the loss, and what the backward reads outside
        (TRAINED, False, 1, 1),  # a module's gradient is the optimizer's where it lies
        (TRAINED, True, 2, 5),  # Dynamo's is copied: 1526 blocks, of which a launch holds 320
    ],
)
def test_what_others_read_is_copied(
    regions: list[tuple[int, ...]], by_dynamo: bool, tensors: int, kernels: int
) -> None:
    piece = copies_piece(step(), H200, regions, by_dynamo=by_dynamo)
    assert piece is not None and piece.is_copy and piece.launches == 1
    assert piece.device_us.mid == pytest.approx(copied_us(tensors, kernels=kernels))
    assert piece.host_us.mid == 0.0


@pytest.mark.parametrize(("by_dynamo", "tensors"), [(True, 3), (False, 1)])
def test_state_that_dynamos_code_writes_is_copied_before_and_back(
    by_dynamo: bool, tensors: int
) -> None:
    piece = copies_piece(step(writes=True), H200, FORWARD, by_dynamo=by_dynamo)
    assert piece is not None
    kernels = 3 + 2 if by_dynamo else 1  # 763 blocks of what the backward reads
    assert piece.device_us.mid == pytest.approx(copied_us(tensors, kernels=kernels))


@pytest.mark.parametrize("kept", ["nothing", "an output"])
def test_of_the_whole_step_its_outputs_are_copied(kept: Literal["nothing", "an output"]) -> None:
    made = iteration(
        [op("aten.tanh.default", [tensor(INPUT, 4)], [tensor(RESULT, 4)])],
        externals=[external(INPUT, "inputs[0]")],
        outputs=[tensor(RESULT, 4)] if kept == "an output" else [],
    )
    assert (copies_piece(made, H200, None, by_dynamo=True) is not None) == (kept == "an output")


def test_calling_graphs_keeps_the_host_busy_and_launches_nothing() -> None:
    (piece,) = calling(Calls(segment=2, glue=3), H200)
    figures = H200.call_us
    assert piece.host_us.mid == pytest.approx(2 * figures.segment.mid + 3 * figures.glue.mid)
    assert (piece.device_us.mid, piece.launches, piece.nodes) == (0.0, 0, 0)
    assert calling(NO_CALLS, H200) == ()
