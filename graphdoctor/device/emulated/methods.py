"""Tensor methods that return a device or move between devices, for logical devices.

They are replaced on the class, and not answered by the function mode, because Python that runs
inside a C++ call (saved-tensor hooks, gradient hooks) runs while the mode is off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from graphdoctor.device.emulated import legacy
from graphdoctor.device.emulated.copies import BASE, MoveTo, copy_to
from graphdoctor.device.emulated.functions import call_on
from graphdoctor.device.emulated.logical import LogicalDevice, wants_cuda
from graphdoctor.device.observe.patches import Patches
from graphdoctor.values.figures import shortened
from graphdoctor.values.host_events import PIN_MEMORY, AssumedValue

_SHOWN = 8  # of values that were assumed


def stand_in_for_methods(device: LogicalDevice, patches: Patches) -> None:
    """Replace the methods and properties of torch.Tensor that depend on the device."""
    table = device.table
    index = device.rank.index
    cuda = torch.device("cuda", index)

    def bind(method: Callable[..., Any]) -> Callable[..., Any]:
        def bound(self: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
            return method(device, self, *args, **kwargs)

        bound.__name__ = method.__name__.strip("_")
        return bound

    def where(self: torch.Tensor) -> torch.device:
        if table.is_cuda(self):
            return cuda
        physical: torch.device = BASE.device.__get__(self)
        return physical

    def is_cpu(self: torch.Tensor) -> bool:
        return bool(BASE.is_cpu.__get__(self)) and not table.is_cuda(self)

    patches.set(torch.Tensor, "device", property(where))
    patches.set(torch.Tensor, "is_cuda", property(table.is_cuda))
    patches.set(torch.Tensor, "is_cpu", property(is_cpu))
    patches.set(torch.Tensor, "get_device", lambda self: index if table.is_cuda(self) else -1)
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: table.is_pinned(self))
    for method in (_to, _cuda, _cpu, _pin_memory, _numpy, _tolist, _new_tensor, _record_stream):
        patches.set(torch.Tensor, method.__name__[1:], bind(method))
    patches.set(torch.Tensor, "type", bind(legacy.type_of))
    patches.set(torch.Tensor, "type_as", bind(legacy.type_as))
    patches.set(torch.Tensor, "new", bind(legacy.new))


def _to(device: LogicalDevice, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _moved(device, tensor, MoveTo.from_to_call(device, args, kwargs))


def _moved(device: LogicalDevice, tensor: torch.Tensor, move: MoveTo) -> torch.Tensor:
    moved = copy_to(device, tensor, move)
    if is_lazy(tensor) and not is_lazy(moved):  # a buffer that has no shape yet
        with torch._C.DisableTorchFunctionSubclass():
            return moved.as_subclass(type(tensor))
    return moved


def _cuda(
    device: LogicalDevice,
    tensor: torch.Tensor,
    /,
    where: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    where = kwargs.get("device", where)
    if where is not None:
        wants_cuda(where)
    move = MoveTo(cuda=True, non_blocking=non_blocking, memory_format=memory_format)
    return _moved(device, tensor, move)


def _cpu(
    device: LogicalDevice,
    tensor: torch.Tensor,
    /,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    return copy_to(device, tensor, MoveTo(cuda=False, memory_format=memory_format))


def _pin_memory(
    device: LogicalDevice, tensor: torch.Tensor, /, where: Any = None, **kwargs: Any
) -> torch.Tensor:
    if device.table.is_cuda(tensor):
        raise RuntimeError(
            "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
        )
    if device.table.is_pinned(tensor):
        return tensor
    device.event(PIN_MEMORY)
    pinned = tensor.clone()
    device.table.info(pinned).pinned = True
    return pinned


def _numpy(device: LogicalDevice, tensor: torch.Tensor, /, *, force: bool = False) -> Any:
    if not device.table.is_cuda(tensor):
        _tell_if_assumed(device, tensor, "Tensor.numpy()")
        return BASE.numpy(tensor, force=force)
    if not force:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    copied = copy_to(device, tensor.detach(), MoveTo(cuda=False))
    _tell_if_assumed(device, copied, "Tensor.numpy()")
    return BASE.numpy(copied, force=True)


def _tolist(device: LogicalDevice, tensor: torch.Tensor, /) -> Any:
    """tolist() reads memory below the dispatcher; on CUDA it copies to the host first."""
    if device.table.is_cuda(tensor):
        tensor = copy_to(device, tensor.detach(), MoveTo(cuda=False))
    _tell_if_assumed(device, tensor, "Tensor.tolist()")
    return BASE.tolist(tensor)


def _tell_if_assumed(device: LogicalDevice, tensor: torch.Tensor, name: str) -> None:
    """Python reads a whole tensor, by no operator: where it has no true values, that is an assumption."""
    if not device.table.has_true_values(tensor):
        values = shortened(str(BASE.tolist(tensor.flatten()[:_SHOWN])))
        device.event(AssumedValue(name, value=values))


def _new_tensor(
    device: LogicalDevice, tensor: torch.Tensor, /, data: Any, **kwargs: Any
) -> torch.Tensor:
    where = kwargs.pop("device", None)
    if where is None:
        where = tensor.device
    made: torch.Tensor = call_on(device, BASE.new_tensor, (tensor, data), kwargs, where)
    return made


def _record_stream(device: LogicalDevice, tensor: torch.Tensor, /, stream: Any) -> None:
    """Only the allocator cares: memory of the device is never used again too early here."""
