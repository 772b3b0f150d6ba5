"""Threads that start while the device is emulated -> threads that see it too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphdoctor.device.observe.patches import Patches

if TYPE_CHECKING:
    from graphdoctor.device.emulated.device import EmulatedDevice


def stand_in_for_threads(device: EmulatedDevice, patches: Patches) -> None:
    """Torch's modes belong to one thread: let each new one begin by entering them.

    What another thread does is no part of the step that is observed.
    """

    def entering(original: Callable[..., Any]) -> Callable[..., Any]:
        def bootstrap(self: threading.Thread) -> None:
            with device.in_this_thread():
                original(self)

        return bootstrap

    # Not run(): people override it.
    patches.replace(threading.Thread, "_bootstrap_inner", entering)
