"""Open the chosen device: the real one, observed, or the emulated one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import torch

from graphdoctor.device.emulated import EmulatedDevice, entered
from graphdoctor.device.real import WatchedDevice
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.values.errors import CannotDoItHere, UsageError
from graphdoctor.values.options import DeviceChoice
from graphdoctor.values.spelling import meant

AnyDevice = EmulatedDevice | WatchedDevice


@contextmanager
def open_device(choice: DeviceChoice, profile: DeviceProfile) -> Iterator[AnyDevice]:
    """Inside the block, code that says "cuda" runs on the device.

    Where a device is emulated already, as in a test of the pytest plugin, it is that one, and what
    was put there is there; what the block puts there is not there afterwards. Else the emulated
    device answers with the name of the GPU that is predicted for. Raises CannotDoItHere for "cuda"
    on a machine without a GPU, and UsageError for no choice at all.
    """
    if choice not in (known := get_args(DeviceChoice)):
        raise UsageError(
            f"device must be one of {', '.join(known)}, not {choice!r}{meant(str(choice), known)}"
        )
    outer = entered()
    if outer is not None:
        if choice == "cuda":
            raise CannotDoItHere(
                "--device cuda needs an NVIDIA GPU, and a CUDA device is emulated here already: "
                "leave it first, or use --device emulated."
            )
        with outer.kept():
            yield outer
        return
    has_gpu = torch.cuda.is_available()
    if choice == "cuda" and not has_gpu:
        raise CannotDoItHere(
            "--device cuda needs an NVIDIA GPU, and torch finds none here: "
            "use --device emulated, which needs no GPU."
        )
    if choice == "emulated" or not has_gpu:
        with EmulatedDevice(name=profile.title) as emulated:
            yield emulated
    else:
        with WatchedDevice() as watched:
            yield watched
