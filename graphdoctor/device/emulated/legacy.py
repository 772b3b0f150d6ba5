"""The legacy tensor types of torch, such as `torch.cuda.FloatTensor`, on the emulated device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _device as default_device

from graphdoctor.device.emulated.copies import BASE, MoveTo, copy_to
from graphdoctor.device.emulated.logical import LogicalDevice
from graphdoctor.device.observe.patches import Patches

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def stand_in_for_legacy_types(device: LogicalDevice, patches: Patches) -> None:
    """Replace `torch.cuda.*Tensor`, `set_default_tensor_type` and the methods that know them."""
    for name in _DTYPES:
        patches.set(torch.cuda, name, CudaTensorType(device, name))

    make = torch.Tensor.__new__
    is_cuda_default = False

    def make_on_default(*args: Any, **kwargs: Any) -> torch.Tensor:
        """`torch.Tensor(...)` has the default tensor type, and ignores the default device.

        Dynamo, which may be imported meanwhile, compares signatures: it takes any for this one.
        """
        made: torch.Tensor = make(*args, **kwargs)
        if not is_cuda_default or args[0] is not torch.Tensor or _is_tensor(args[1:]):
            return made
        return place(device, made, from_data=holds_data(args[1:]))

    def set_default(kind: Any) -> None:
        nonlocal is_cuda_default
        dtype, cuda = _read(kind)
        torch.set_default_dtype(dtype or torch.float32)
        torch.set_default_device("cuda" if cuda else None)
        if cuda and "__new__" not in vars(torch.Tensor):  # each call would pay for it
            patches.set(torch.Tensor, "__new__", staticmethod(make_on_default))
        is_cuda_default = cuda

    patches.set(torch, "set_default_tensor_type", set_default)


@contextmanager
def default_device_kept() -> Iterator[None]:
    """torch 2.6 cannot tell the default device after `set_default_device(None)`: what was never set is unset."""
    before = default_device.CURRENT_DEVICE
    context: Any = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    was_set = hasattr(context, "device_context")
    try:
        yield
    finally:
        torch.set_default_device(before)
        if not was_set and hasattr(context, "device_context"):
            del context.device_context


class CudaTensorType:
    """Stands in for a class such as torch.cuda.FloatTensor: constructor and isinstance test."""

    __module__ = "torch.cuda"

    def __init__(self, device: LogicalDevice, name: str) -> None:
        self._device = device
        self.__name__ = name
        self.dtype = _DTYPES[name]
        self.is_cuda = True

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("device", None)
        if _is_tensor(args):
            return args[0]  # type: ignore[no-any-return]
        made: torch.Tensor = getattr(torch, self.__name__)(*args, **kwargs)
        return place(self._device, made, from_data=holds_data(args))

    def __instancecheck__(self, value: object) -> bool:
        if not isinstance(value, torch.Tensor) or value.dtype != self.dtype:
            return False
        return self._device.table.is_cuda(value)

    def __repr__(self) -> str:
        return f"<class 'torch.cuda.{self.__name__}'>"


def _is_tensor(args: tuple[Any, ...]) -> bool:
    """Whether a legacy constructor was given a tensor, of which it makes an alias."""
    return bool(args) and isinstance(args[0], torch.Tensor)


def holds_data(args: tuple[Any, ...]) -> bool:
    """Whether the arguments of a legacy constructor are values, and not sizes."""
    return bool(args) and not isinstance(args[0], (int, torch.Size, torch.device))


def place(device: LogicalDevice, made: torch.Tensor, *, from_data: bool) -> torch.Tensor:
    """Put a tensor made on the CPU on the device: by a copy where its values come from the host."""
    if from_data:
        return copy_to(device, made, MoveTo(cuda=True))
    device.put(made)
    return made


def type_of(
    device: LogicalDevice, tensor: torch.Tensor, /, dtype: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Tensor.type(): with a legacy type it may move between devices, else it names its own."""
    cuda = device.table.is_cuda(tensor)
    if dtype is None:
        return f"torch.{'cuda.' if cuda else ''}{_NAMES.get(tensor.dtype, 'Tensor')}"
    if isinstance(dtype, torch.dtype):
        return copy_to(device, tensor, MoveTo(dtype=dtype))
    known, to_cuda = _read(dtype)
    if known is None:
        return BASE.type(tensor, dtype, *args, **kwargs)
    return copy_to(device, tensor, MoveTo(cuda=to_cuda, dtype=known))


def new(device: LogicalDevice, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Tensor.new(): sizes or values, in the tensor's dtype and on its device."""
    kwargs.pop("device", None)
    with torch._C.DisableTorchFunction():
        made: torch.Tensor = BASE.new(tensor, *args, **kwargs)
    if not device.table.is_cuda(tensor) or isinstance(args[0] if args else None, torch.Tensor):
        return made
    return place(device, made, from_data=holds_data(args))


def type_as(device: LogicalDevice, tensor: torch.Tensor, other: torch.Tensor, /) -> torch.Tensor:
    return copy_to(device, tensor, MoveTo(cuda=device.table.is_cuda(other), dtype=other.dtype))


def _read(kind: Any) -> tuple[torch.dtype | None, bool]:
    """The dtype and device that a legacy type, or its name, stands for."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    return _DTYPES.get(name.rpartition(".")[2]), ".cuda." in name
