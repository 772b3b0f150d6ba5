"""What the capture of an optimizer's step asks of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer keep its step counts on the GPU, as `capturable=True` does in its constructor.

    The optimizer gets fused kernels where torch has them. They take a learning rate as a tensor, and skip
    a step on the GPU if a GradScaler found an infinite gradient: `scaler.step()` of other optimizers reads
    that on the CPU. Results change by rounding.
    """
    groups = optimizer.param_groups
    is_differentiable = any(group.get("differentiable") for group in groups)
    if all("fused" in group for group in groups) and _is_plain(groups) and not is_differentiable:
        for group in (*groups, optimizer.defaults):
            group["fused"], group["foreach"] = True, False
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        if isinstance(optimizer, torch.optim.SGD):
            optimizer._need_device_dtype_check_for_fused = False
    for group in (*groups, optimizer.defaults):
        if "capturable" in group:
            group["capturable"] = True
    for parameter, state in optimizer.state.items():
        count = state.get("step") if isinstance(state, dict) else None
        if isinstance(count, torch.Tensor) and not count.is_cuda and parameter.is_cuda:
            state["step"] = count.to(device=parameter.device, dtype=torch.float32)


def _is_plain(groups: Sequence[dict[str, Any]]) -> bool:
    """Whether fused kernels take the parameters."""
    parameters = [p for group in groups for p in group["params"]]
    return all(
        p.is_cuda and p.is_floating_point() and type(p) is torch.nn.Parameter for p in parameters
    )
