"""DistributedDataParallel on the emulated device: what its reducer, which is C++, does on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.device.emulated.streams import StreamingDevice
from graphdoctor.device.observe.data_parallel import WhereMade
from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.device.observe.operators import Call, Observer, tensors_of
from graphdoctor.device.observe.patches import Patches
from graphdoctor.values.host_events import DdpTiming


class ReducingDevice(StreamingDevice, Protocol):
    """A device on which buckets of gradients can be made; `broken_off` counts the runs that did not come to their end.

    `warm_groups` are the process groups that have a communicator, by name.
    """

    broken_off: int
    meeting: Meeting
    warm_groups: set[str]
    warms_groups_late: bool

    @property
    def is_captured_by_user(self) -> bool: ...

    def making_on_cuda(self) -> AbstractContextManager[None]: ...

    def attach(self, observer: Observer) -> None: ...

    def detach(self, observer: Observer) -> None: ...


_TIMED_STEPS, _SAMPLED_STEP = 10, 100
_TIMES_ITSELF = (
    "CUDA error: operation not permitted when stream is capturing (DistributedDataParallel reads its timers"
    " after each of its first ten steps, and after every hundredth: 11 steps have to go before a capture)"
)


@dataclass(slots=True)
class _Made:
    """What had broken off when a module last ran, and the steps that it reduced gradients in."""

    broken_off: int
    steps: int = 0

    @property
    def reads_timers(self) -> bool:
        """Source: Reducer::should_collect_runtime_stats in reducer.hpp; two H200s refused 3, 9, 10, 100."""
        return 0 < self.steps <= _TIMED_STEPS or (self.steps > 0 and not self.steps % _SAMPLED_STEP)


def stand_in_for_data_parallel(device: ReducingDevice, patches: Patches) -> None:
    """Let buckets lie where the parameters lie: the reducer asks for their physical device."""
    known: WeakKeyDictionary[Any, _Made] = WeakKeyDictionary()
    where = WhereMade(device, lambda: device.streams.current.is_default)

    def initializing(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def _ddp_init_helper(self: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
            known[self] = _Made(device.broken_off)
            with _like_its_parameters(device, self), _pinning(device, len(parameters)):
                return original(self, parameters, *args, **kwargs)

        return _ddp_init_helper

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
            made = known.get(self)
            if made is not None and made.broken_off != device.broken_off:
                made.broken_off = device.broken_off
                self.reducer._reset_state()  # a backward pass may have ended half way
            if made is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
                if device.is_captured_by_user and made.reads_timers:
                    device.event(DdpTiming("DistributedDataParallel()", refusal=_TIMES_ITSELF))
                made.steps += 1
            with _like_its_parameters(device, self):  # buckets are rebuilt here
                return original(self, *inputs, **kwargs)

        return _pre_forward

    patches.replace(DistributedDataParallel, "_ddp_init_helper", initializing)
    patches.replace(DistributedDataParallel, "_pre_forward", running)
    where.look_at_making(patches)
    where.tell_of_runs(patches)


def _like_its_parameters(device: ReducingDevice, module: Any) -> AbstractContextManager[None]:
    return device.making_on_cuda() if module.device_type == "cuda" else nullcontext()


@contextmanager
def _pinning(device: ReducingDevice, parameters: int) -> Iterator[None]:
    """Pin the map of used parameters, as the reducer copies it by pinned memory on a GPU.

    Source: Reducer::all_reduce_local_used_map in torch/csrc/distributed/c10d/reducer.cpp. Back to the
    host it is copied only where a parameter went unused.
    """
    observer = _MapOfUsedParameters(device, parameters)
    device.attach(observer)
    try:
        yield
    finally:
        device.detach(observer)


class _MapOfUsedParameters(Observer):
    """Sees the map made: one int32 for each parameter, on the host."""

    def __init__(self, device: ReducingDevice, parameters: int) -> None:
        self._device, self._parameters = device, parameters

    def after(self, call: Call) -> None:
        for tensor in tensors_of(call.result):
            if tensor.dtype == torch.int32 and tensor.shape == (self._parameters,):
                info = self._device.table.info(tensor)
                info.pinned = not info.cuda
