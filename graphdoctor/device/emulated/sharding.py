"""Stand-ins for what DTensor and `fully_shard` do in C++ and with the generators of a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from graphdoctor.device.emulated.graph import CapturingDevice
from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.device.observe.patches import Patches

_RANDOM = "torch.distributed.tensor._random"


def stand_in_for_sharding(device: CapturingDevice, patches: Patches) -> None:
    """Let DTensor and `fully_shard` do in C++ what they do with memory, which is the CPU's: they wrap
    local tensors, and free storages and make them anew.
    """
    patches.replace(torch.Tensor, "_make_wrapper_subclass", _wrapping)
    patches.replace(torch.UntypedStorage, "resize_", lambda original: _resizing(device, original))
    patches.replace(torch.Tensor, "copy_", _copying)
    _stand_in_for_random_numbers(patches)


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


def _stand_in_for_random_numbers(patches: Patches) -> None:
    """They need a mesh, and few programs make one, while the import takes a second."""
    if _RANDOM in sys.modules:
        _draw_alone(patches)
        return

    def making(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            _draw_alone(patches)
            original(self, *args, **kwargs)

        return __init__

    patches.replace(DeviceMesh, "__init__", making)


def _draw_alone(patches: Patches) -> None:
    tracker = getattr(import_module(_RANDOM), "OffsetBasedRNGTracker", None)
    if getattr(tracker, "_distribute_region", None) is not _drawing_alone:
        patches.replace(tracker, "_distribute_region", lambda original: _drawing_alone)


@contextmanager
def _drawing_alone(
    tracker: Any, spec: Any, generator: torch.Generator | None = None
) -> Iterator[None]:
    """A random operator on this rank's part of a DTensor draws numbers of its own.

    DTensor moves the generator to this part's place, in the 16 bytes that CUDA's state has: the emulated device's
    state is the CPU's. torch 2.13 has an operator for it, `run_dtensor_rng_op`, where nobody gives a generator.
    """
    if torch.cuda.is_current_stream_capturing():
        raise EmulationLimit(
            "it is not known what a replay draws for a DTensor, whose generator is moved on the host"
        )
    if generator is None:
        yield
        return
    default = torch.default_generator
    kept = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(kept)
