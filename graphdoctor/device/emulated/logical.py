"""What the parts of the emulated device know of it, and which device a call names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from graphdoctor.device.emulated.local_rank import LocalRank
from graphdoctor.device.observe.host_calls import Tells

CPU = torch.device("cpu")


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
