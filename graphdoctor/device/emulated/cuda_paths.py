"""Functions whose code for the CPU reads more values than their code for CUDA -> what CUDA runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from graphdoctor.device.emulated.device import EmulatedDevice


def _one_hot(device: EmulatedDevice, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """With a number of classes CUDA checks nothing on the host; without, it reads the largest.

    Source: aten/src/ATen/native/Onehot.cpp. Measured with torch 2.11.0 on an H200.
    """
    if num_classes <= 0 or not device.table.is_cuda(tensor):
        return torch._C._nn.one_hot(tensor, num_classes)
    shape = (*tensor.shape, num_classes)
    zeros = device.run_with_target(True, torch.zeros, (shape,), {"dtype": torch.long, **_ON_CPU})
    made: torch.Tensor = zeros.scatter_(-1, tensor.unsqueeze(-1), 1)
    return made


_ON_CPU = {"device": torch.device("cpu")}
CUDA_PATHS: Mapping[Callable[..., Any], Callable[..., Any]] = {torch._C._nn.one_hot: _one_hot}
