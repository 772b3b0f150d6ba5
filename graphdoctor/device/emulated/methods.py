"""Tensor methods that return a device or move between devices, for logical devices.

They are replaced on the class, and not answered by the function mode, because Python that runs
inside a C++ call (saved-tensor hooks, gradient hooks) runs while the mode is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _device as default_device

from graphdoctor.device.emulated.functions import call_on
from graphdoctor.device.emulated.logical import BASE, LogicalDevice, MoveTo, copy_to, wants_cuda
from graphdoctor.device.observe.patches import Patches
from graphdoctor.values.figures import shortened
from graphdoctor.values.host_events import PIN_MEMORY, AssumedValue

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
    """Replaces a class such as torch.cuda.FloatTensor: constructor and isinstance test."""

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
    """The dtype and device of a legacy type, or of its name."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    return _DTYPES.get(name.rpartition(".")[2]), ".cuda." in name


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
    patches.set(torch.Tensor, "type", bind(type_of))
    patches.set(torch.Tensor, "type_as", bind(type_as))
    patches.set(torch.Tensor, "new", bind(new))


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
