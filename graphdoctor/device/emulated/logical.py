"""What the parts of the emulated device know of it: which device a call names, and how a tensor is copied there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from graphdoctor.device.observe.host_calls import Tells

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One process of those on this machine, each of which has the device of its number."""

    index: int = 0
    count: int = 1

    @staticmethod
    def of_environment() -> LocalRank:
        """As torchrun says it; without LOCAL_WORLD_SIZE all ranks are on this machine. One process if none says it."""
        index = _number("LOCAL_RANK", _number("RANK", -1))
        count = _number("LOCAL_WORLD_SIZE", _number("WORLD_SIZE", 0))
        return LocalRank(index, count) if 0 <= index < count else LocalRank()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


class LogicalDevice(Tells, Protocol):
    """The device as its parts see it: where storages lie, what runs on it, and whom to tell."""

    name: str
    capability: tuple[int, int]
    rank: LocalRank
    passed_compiler_by: bool

    @property
    def is_capturing(self) -> bool: ...

    def put(self, tensor: torch.Tensor) -> None: ...

    def state_was_read(self, state: torch.Tensor) -> None: ...

    def state_was_set(self, state: torch.Tensor) -> None: ...

    def in_this_thread(self) -> AbstractContextManager[None]: ...

    def run_with_target(
        self,
        cuda: bool | None,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any: ...


def wants_cuda(device: Any) -> bool | None:
    """Whether a device argument names CUDA; None for no device, or neither CUDA nor CPU.

    Raises RuntimeError, as CUDA does, for a device index that is not there: one device is emulated,
    that of this process's rank.
    """
    if device is None:
        return None
    if isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    parsed = torch.device(device)
    if parsed.type == "cuda":
        if parsed.index is not None and parsed.index != torch.cuda.current_device():
            raise RuntimeError("CUDA error: invalid device ordinal")
        return True
    return False if parsed.type == "cpu" else None


BASE: Any = torch._C.TensorBase


@dataclass(frozen=True, slots=True)
class MoveTo:
    """The arguments of `Tensor.to`; `cuda` is None if no device was given."""

    cuda: bool | None = None
    dtype: torch.dtype | None = None
    non_blocking: bool = False
    copy: bool = False
    memory_format: torch.memory_format | None = None
    other_device: torch.device | None = None  # neither CPU nor CUDA, "meta" for one

    @staticmethod
    def from_to_call(
        device: LogicalDevice, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> MoveTo:
        """Read the arguments of `Tensor.to(device | dtype | other, ...)`."""
        rest = list(args)
        where = kwargs.get("device")
        dtype = kwargs.get("dtype")
        other = kwargs.get("other")
        if rest and isinstance(rest[0], torch.Tensor):
            other = rest.pop(0)
        elif rest and isinstance(rest[0], torch.dtype):
            dtype = rest.pop(0)
        elif rest and (rest[0] is None or isinstance(rest[0], (str, int, torch.device))):
            where = rest.pop(0)
            if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                dtype = rest.pop(0)
        cuda: bool | None
        if other is not None:
            cuda, dtype = device.table.is_cuda(other), other.dtype
        else:
            cuda = wants_cuda(where)
        elsewhere = torch.device(where) if where is not None and cuda is None else None
        return MoveTo(
            cuda=cuda,
            dtype=dtype,
            non_blocking=bool(kwargs.get("non_blocking", rest[0] if rest else False)),
            copy=bool(kwargs.get("copy", rest[1] if len(rest) > 1 else False)),
            memory_format=kwargs.get("memory_format"),
            other_device=elsewhere,
        )


def copy_to(device: LogicalDevice, tensor: torch.Tensor, move: MoveTo) -> torch.Tensor:
    """`tensor.to(...)` on logical devices: the tensor itself where nothing has to change."""
    if move.other_device is not None:
        return BASE.to(tensor, move.other_device, dtype=move.dtype)  # type: ignore[no-any-return]
    here = device.table.is_cuda(tensor)
    dtype = move.dtype if move.dtype is not None else tensor.dtype
    if move.cuda is None or move.cuda == here:
        kwargs: dict[str, Any] = {"copy": move.copy, "non_blocking": move.non_blocking}
        if move.memory_format is not None:
            kwargs["memory_format"] = move.memory_format
        return BASE.to(tensor, dtype, **kwargs)  # type: ignore[no-any-return]
    if tensor.requires_grad and torch.is_grad_enabled():
        moved: torch.Tensor = _Move.apply(tensor, device, move)  # type: ignore[no-untyped-call]
        return moved
    return _move(device, tensor, move)


def _move(device: LogicalDevice, tensor: torch.Tensor, move: MoveTo) -> torch.Tensor:
    kwargs: dict[str, Any] = {"device": torch.device("cpu"), "non_blocking": move.non_blocking}
    if move.dtype is not None and move.dtype != tensor.dtype:
        kwargs["dtype"] = move.dtype
    if move.memory_format is not None:
        kwargs["memory_format"] = move.memory_format
    moved: torch.Tensor = device.run_with_target(
        move.cuda, torch.ops.aten._to_copy.default, (tensor,), kwargs
    )
    return moved


class _Move(torch.autograd.Function):
    """A copy between logical devices whose gradient travels back the same way.

    torch's own `to` would find equal physical devices in its backward, and copy nothing.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, device: LogicalDevice, move: MoveTo
    ) -> torch.Tensor:
        ctx.device = device
        ctx.back = MoveTo(cuda=not move.cuda, dtype=tensor.dtype)
        return _move(device, tensor, move)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return copy_to(ctx.device, grads[0], ctx.back), None, None
