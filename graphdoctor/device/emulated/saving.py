"""torch.save and torch.load -> the same, with the logical device of each storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import serialization

from graphdoctor.device.emulated.functions import wants_cuda
from graphdoctor.device.observe.patches import Patches

if TYPE_CHECKING:
    from graphdoctor.device.emulated.device import EmulatedDevice


def stand_in_for_saving(device: EmulatedDevice, patches: Patches) -> None:
    """Replace what tells a storage's device when it is saved, and puts it there when loaded."""
    patches.replace(serialization, "location_tag", lambda original: _tag(device, original))
    patches.replace(
        serialization, "default_restore_location", lambda original: _restore(device, original)
    )


def _tag(device: EmulatedDevice, original: Callable[..., str]) -> Callable[..., str]:
    def location_tag(storage: Any) -> str:
        if not device.table.lies_on_cuda(_untyped(storage)):
            return original(storage)
        device.event("sync", "torch.save()")  # it copies to the host
        return "cuda:0"

    return location_tag


def _restore(device: EmulatedDevice, original: Callable[..., Any]) -> Callable[..., Any]:
    def restore_location(storage: Any, location: Any) -> Any:
        name = location.decode() if isinstance(location, bytes) else str(location)
        if not name.startswith("cuda"):
            return original(storage, location)
        wants_cuda(name)
        device.table.put_storage_on_cuda(_untyped(storage))
        return storage

    return restore_location


def _untyped(storage: Any) -> torch.UntypedStorage:
    untyped: torch.UntypedStorage = getattr(storage, "_untyped_storage", storage)
    return untyped
