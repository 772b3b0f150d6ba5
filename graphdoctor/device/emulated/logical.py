"""What the parts of the emulated device know of it, which device a call names, and which are this process's."""

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
