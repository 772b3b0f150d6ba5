"""Copy a tensor to another device, by one operator that observers see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.device.emulated.logical import LogicalDevice, wants_cuda

BASE: Any = torch._C.TensorBase


@dataclass(frozen=True, slots=True)
class MoveTo:
    """What `Tensor.to` was asked for; `cuda` is None where no device was named."""

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
