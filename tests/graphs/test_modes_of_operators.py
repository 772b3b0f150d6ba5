"""Which of torch's switches are asked before a replay: those that may choose kernels of what was captured."""

from __future__ import annotations

import pytest
import torch

from graphdoctor.graphs.guards import Modes
from tests.support.builders import iteration, op, recording


def _watches(name: str, operator: str) -> bool:
    if not hasattr(torch._C, f"_get_{name}"):
        pytest.skip(f"torch {torch.__version__} has no such switch")
    modes = Modes()
    modes.watch(recording(iteration([op(operator)])))
    ask, put = getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}")
    was = ask()
    put(not was)
    try:
        return not modes.is_same()
    finally:
        put(was)


@pytest.mark.parametrize(
    ("switch", "operator", "is_watched"),
    [
        ("cudnn_enabled", "aten.convolution.default", True),
        ("cudnn_enabled", "aten.add.Tensor", False),
        ("cudnn_enabled", "mine.anything.default", True),
        ("math_sdp_allow_fp16_bf16_reduction", "mine.anything.default", True),
        ("math_sdp_allow_fp16_bf16_reduction", "aten._softmax.default", True),
        ("math_sdp_allow_fp16_bf16_reduction", "aten.add.Tensor", False),
        ("cublas_allow_fp16_accumulation", "mine.anything.default", True),
    ],
)
def test_a_switch_is_asked_where_a_kernel_may_be_chosen_by_it(
    switch: str, operator: str, is_watched: bool
) -> None:
    assert _watches(switch, operator) == is_watched


def test_the_switch_that_changed_is_named() -> None:
    modes = Modes()
    modes.watch(recording(iteration([op("aten.convolution.default")])))
    assert modes.difference() == ""
    was = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = not was
    try:
        assert modes.difference().endswith(f" changed from {was} to {not was}")
    finally:
        torch.backends.cudnn.enabled = was
