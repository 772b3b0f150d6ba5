"""Which of torch's switches are asked before a replay: those that may choose kernels of what was captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class _PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_second_dispatch_mode_around_a_call_is_noticed() -> None:
    """The form of a call with tensors shows whether a mode is active, but not how many are."""
    with _PassThrough():
        modes = Modes()
        is_same = modes.in_gradient_mode(has_tensors=True)
        assert is_same(0)
        with _PassThrough():
            assert not is_same(0)


@pytest.mark.parametrize("was_capturing", [False, True])
def test_a_callers_capture_is_compared_on_each_stream_that_may_have_one(
    monkeypatch: pytest.MonkeyPatch, was_capturing: bool
) -> None:
    captures = [was_capturing]
    monkeypatch.setattr(
        torch._C, "_cuda_isCurrentStreamCapturing", lambda: captures[-1], raising=False
    )
    is_same = Modes().in_gradient_mode(has_tensors=True)
    captures.append(not was_capturing)
    assert not is_same(7)
    # The default stream is never captured: only a graph of a capture differs there.
    assert is_same(0) != was_capturing


def test_a_build_for_cuda_without_a_gpu_has_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", fails)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Modes().in_gradient_mode(has_tensors=True)(0)
