"""Sharded tensors on the emulated device: wrappers of local tensors, and storages that are freed and made anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from graphdoctor.device.emulated.graph import CapturingDevice
from graphdoctor.device.observe.patches import Patches


def stand_in_for_sharding(device: CapturingDevice, patches: Patches) -> None:
    """Let DTensor and `fully_shard` do in C++ what they do with memory, which is the CPU's."""
    patches.replace(torch.Tensor, "_make_wrapper_subclass", _wrapping)
    patches.replace(torch.UntypedStorage, "resize_", lambda original: _resizing(device, original))
    patches.replace(torch.Tensor, "copy_", _copying)


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that says it is on CUDA makes autograd ask for a CUDA that is not linked."""

    def make_wrapper_subclass(*args: Any, **kwargs: Any) -> Any:
        where = kwargs.get("device")
        if where is not None and torch.device(where).type == "cuda":
            kwargs["device"] = torch.device("cpu")
        return original(*args, **kwargs)

    return staticmethod(make_wrapper_subclass)


def _copying(original: Callable[..., Any]) -> Callable[..., Any]:
    """DTensor runs operators on shapes first, on fake tensors that say they are on CUDA.

    `uniform_` copies there, and the method asks for a CUDA that is not linked, while its operator does not.
    """

    @wraps(original)
    def copy_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
            return original(self, *args, **kwargs)
        return torch.ops.aten.copy_.default(self, *args, **kwargs)

    return copy_


def _resizing(device: CapturingDevice, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type == "cpu":
            self.data_ptr()  # gives it memory of its own: torch resizes none that is shared until written
        if device.capturing is not None:
            device.capturing.resize(self, int(size))
        return original(self, size)

    return resize_
