"""DistributedDataParallel -> whether a module that runs was made on the default stream.

It keeps the nodes that accumulate its parameters' gradients, and each node runs on the stream on which it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.device.observe.earlier_graphs import LEGACY, Telling
from graphdoctor.device.observe.patches import Patches
from graphdoctor.values.host_events import DdpOnDefaultStream


class WhereMade:
    """The modules that were made on the default stream, from when it looks at their making on."""

    def __init__(self, device: Telling, is_on_default_stream: Callable[[], bool]) -> None:
        self._device, self._is_on_default_stream = device, is_on_default_stream
        self._made: WeakSet[Any] = WeakSet()

    def look_at_making(self, patches: Patches) -> None:
        def initializing(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def _ddp_init_helper(module: Any, *args: Any, **kwargs: Any) -> Any:
                if module.device_type == "cuda" and self._is_on_default_stream():
                    self._made.add(module)
                return original(module, *args, **kwargs)

            return _ddp_init_helper

        patches.replace(DistributedDataParallel, "_ddp_init_helper", initializing)

    def tell_of_runs(self, patches: Patches) -> None:
        """Let the device tell where such a module runs and takes gradients."""

        def running(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def _pre_forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
                if module in self._made and torch.is_grad_enabled():
                    event = DdpOnDefaultStream("DistributedDataParallel()", refusal=LEGACY)
                    self._device.event(event)
                return original(module, *inputs, **kwargs)

            return _pre_forward

        patches.replace(DistributedDataParallel, "_pre_forward", running)
