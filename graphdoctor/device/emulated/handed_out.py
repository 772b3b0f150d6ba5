"""A tensor's memory by DLPack: tensors of the device stay on it, and no other library gets what is not there.

Whoever has an address of the memory that is emulated could write there unseen. Results of the device share
memory until somebody writes into it (`observe/known_results.py`, `graphs/region_run.py`), and torch parts
them by the writes that it sees: so nobody else may have the device's memory, as NumPy has none of a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphdoctor.device.emulated.logical import LogicalDevice
from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.device.observe.patches import Patches

_REFUSED = (
    "The emulated CUDA device has no memory on a GPU that another library could take by DLPack"
)
_CUDA = 2  # kDLCUDA


def stand_in_for_dlpack(device: LogicalDevice, patches: Patches) -> None:
    """Let torch take the device's tensors from itself, and refuse them to all others."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def hand_out(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if device.table.is_cuda(tensor):
                raise EmulationLimit(_REFUSED)
            return original(tensor, *args, **kwargs)

        return hand_out

    def telling(original: Callable[..., Any]) -> Callable[..., Any]:
        def device_of(tensor: torch.Tensor) -> Any:
            if not device.table.is_cuda(tensor):
                return original(tensor)
            return torch.utils.dlpack.DLDeviceType(_CUDA), device.rank.index

        return device_of

    def taking(original: Callable[..., Any]) -> Callable[..., Any]:
        def from_dlpack(ext_tensor: Any, **kwargs: Any) -> Any:
            if not isinstance(ext_tensor, torch.Tensor) or not device.table.is_cuda(ext_tensor):
                return original(ext_tensor, **kwargs)
            if ext_tensor.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            to = {name: value for name, value in kwargs.items() if value is not None}
            same = ext_tensor.detach()
            return same.to(to.get("device", same.device), copy=bool(to.get("copy")))

        return from_dlpack

    patches.replace(torch.Tensor, "__dlpack__", refusing)
    patches.replace(torch.Tensor, "__dlpack_device__", telling)
    patches.replace(torch._C, "_to_dlpack", refusing)
    patches.replace(torch.utils.dlpack, "to_dlpack", refusing)
    patches.replace(torch, "to_dlpack", refusing)
    patches.replace(torch.utils.dlpack, "from_dlpack", taking)
    patches.replace(torch, "from_dlpack", taking)
