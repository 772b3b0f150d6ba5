"""Where an operator's recorded results lie in what it returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphdoctor.partition.fx import restored, result_paths
from tests.support.builders import op, tensor

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "outputs", "paths"),
    [
        (ATEN.relu.default, 1, ((),)),
        (ATEN.relu.default, 0, ()),
        (ATEN.relu.default, 2, ((),)),  # one result, which the first is
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


@pytest.mark.parametrize(
    ("returns", "outputs", "paths"),
    [
        ("(Tensor[], Tensor)", 3, ((0, 0), (0, 1), (1,))),
        ("(Tensor[], Tensor[], Tensor)", 5, ((0, 0), (0, 1), (1, 0), (1, 1), (2,))),
        ("(Tensor, Tensor[])", 3, ((0,), (1, 0), (1, 1))),
    ],
)
def test_lists_beside_single_results_are_equally_long(
    returns: str, outputs: int, paths: tuple[tuple[int, ...], ...]
) -> None:
    with torch.library._scoped_library("places_of_results", "FRAGMENT") as library:
        library.define(f"made(Tensor x) -> {returns}")
        target = torch.ops.places_of_results.made.default
        made = op("places_of_results.made", [], [tensor(at, 2) for at in range(outputs)])
        assert result_paths(target, made) == paths


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("torch.float16", torch.float16),
        ("torch.strided", torch.strided),
        ("torch.channels_last", torch.channels_last),
        ("torch.nn", "torch.nn"),  # no constant
        ("torch.no_such_dtype", "torch.no_such_dtype"),
        ("device(type='cuda', index=1)", torch.device("cuda", 1)),
        ("device(type='cpu')", torch.device("cpu")),
        ("cuda:3", torch.device("cuda", 3)),
        ("meta", torch.device("meta")),
        ("cuda:3 of four", "cuda:3 of four"),
    ],
)
def test_texts_of_constants_and_devices_are_read_back_and_others_left(
    text: str, value: object
) -> None:
    assert restored(text) == value
