"""This process -> the device that a model would be captured on: emulated, real, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.open import AnyDevice
from graphdoctor.device.real import WatchedDevice


def emulated_device() -> EmulatedDevice | None:
    """The emulated device that the caller is inside of, if there is one."""
    found = getattr(torch.cuda.CUDAGraph, "device", None)
    return found if isinstance(found, EmulatedDevice) else None


def has_device() -> bool:
    """Whether anything can be captured here."""
    return emulated_device() is not None or torch.cuda.is_available()


@contextmanager
def watched_device() -> Iterator[AnyDevice]:
    """The device, watched for a recording: the caller's emulated one, or else the real one."""
    emulated = emulated_device()
    if emulated is not None:
        yield emulated
        return
    with WatchedDevice() as watched:
        yield watched
