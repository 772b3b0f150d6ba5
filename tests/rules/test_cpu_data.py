"""Which operator on the CPU a value comes from that kernels are given."""

from __future__ import annotations

import pytest

from graphdoctor.rules.causes.cpu_data import steering_values
from graphdoctor.values.recording import Iteration
from tests.support.builders import external, iteration, op, recording, tensor


def step(index: int, *names: str) -> Iteration:
    """An input on the CPU that goes through operators there, and then scales what is on the GPU."""
    values = [tensor(10 * index + at, device="cpu") for at in range(1, len(names) + 2)]
    ops = [op(name, [values[at]], [values[at + 1]], device="cpu") for at, name in enumerate(names)]
    scale = op("aten.mul.Tensor", [tensor(100, 8), values[-1]], [tensor(101, 8)])
    given = [external(10 * index + 1, "inputs[0]", "cpu")]
    return iteration([*ops, scale], index=index, externals=given)


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("aten.round.default", "aten.neg.default"), 0),
        (("aten.detach.default", "aten.neg.default", "aten.exp.default"), 1),
    ],
)
def test_the_first_operator_that_computes_is_named(names: tuple[str, ...], first: int) -> None:
    found = [one.origin for one in steering_values(recording(step(0, *names), step(1, *names)))]
    assert {(one.kind, one.name) for one in found} == {("operator", "inputs[0]")}
    assert {one.op.index for one in found if one.op is not None} == {first}
