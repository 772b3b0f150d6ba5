"""Random numbers of DTensors on the emulated device, whose generator's state is the CPU's and not CUDA's 16 bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.device.observe.patches import Patches

_RANDOM = "torch.distributed.tensor._random"


def stand_in_for_random_numbers_of_dtensors(patches: Patches) -> None:
    """Of DTensors: they need a mesh, and few programs make one, while the import takes a second."""
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
