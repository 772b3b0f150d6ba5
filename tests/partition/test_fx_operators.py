"""Where an operator's recorded results lie in what it returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphdoctor.partition.fx_operators import result_paths
from tests.support.builders import op, tensor

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "outputs", "paths"),
    [
        (ATEN.relu.default, 1, ((),)),
        (ATEN.relu.default, 0, ()),
        (ATEN.aminmax.default, 2, ((0,), (1,))),
        (ATEN.split.Tensor, 3, ((0,), (1,), (2,))),
        # Lists only, equally long: five of two tensors each.
        (
            ATEN._fused_adam.default,
            10,
            tuple((place, position) for place in range(5) for position in range(2)),
        ),
        (ATEN._local_scalar_dense.default, 0, ()),
        (print, 2, ((0,), (1,))),  # no operator of torch: a tensor each
    ],
)
def test_places_of_results(target: Any, outputs: int, paths: tuple[tuple[int, ...], ...]) -> None:
    made = op("aten.some.default", [tensor(0, 2)], [tensor(at + 1, 2) for at in range(outputs)])
    assert result_paths(target, made) == paths
