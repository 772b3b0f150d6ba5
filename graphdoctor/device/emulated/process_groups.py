"""Run `torch.distributed` groups of "nccl" over gloo, with the calls reported as NCCL's would be.

DistributedDataParallel is here too, since its reducer is C++: this module does what the reducer does on a GPU.

Ranks are processes, and values really travel between them. What NCCL enqueues on a stream, gloo does
before the call returns, so that a step sees the results that it would see after `wait()`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, wraps
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.device.emulated.streams import StreamingDevice
from graphdoctor.device.observe.collectives import is_finished_transfer
from graphdoctor.device.observe.earlier_graphs import WhereMade
from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.device.observe.operators import Call, Observer, tensors_of, tensors_of_call
from graphdoctor.device.observe.patches import Patches
from graphdoctor.device.processes.launched import store_of_group
from graphdoctor.values.host_events import Barrier, DdpTiming, ObjectsExchanged, Query


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


# A rank that never comes must end the others; a CPU may be slower than the GPU that a script was made for.
LIMIT = timedelta(seconds=120)
_NCCL = (2, 27, 5)
_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_single",
    "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single",
    "all_to_all", "all_to_all_single",
)  # fmt: skip
_HOST_READS_OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
    "send_object_list", "recv_object_list",
)  # fmt: skip
# The host then asks until the work is done; two H200s took such a wait only where nothing was asynchronous.
_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
_ON = ("1", "true", "True", "TRUE", "y", "Y", "yes")
_BETWEEN_TWO = ("send_object_list", "recv_object_list")
# torch's functions are the same each time a device is entered.
_signature_of = cache(inspect.signature)


@contextmanager
def stand_in_for_process_groups(device: ReducingDevice, patches: Patches) -> Iterator[None]:
    """Replace what needs NCCL. Groups that were made in the block end with it."""
    if not dist.is_available() or not dist.is_gloo_available():
        yield
        return
    from torch.distributed import distributed_c10d as c10d

    groups = _Groups(device)
    patches.replace(c10d, "init_process_group", groups.initializing)
    patches.replace(c10d, "new_group", groups.making)
    patches.replace(c10d, "get_backend", groups.telling)
    patches.replace(c10d, "is_nccl_available", lambda original: lambda: True)
    patches.set(torch.cuda.nccl, "version", lambda: _NCCL)  # error messages name it
    patches.replace(c10d, "barrier", lambda original: _barrier(device, groups, original))
    for name in _HOST_READS_OBJECTS:
        patches.replace(c10d, name, lambda original: _object_call(device, groups, original))
    for name in ("is_completed", "is_success"):
        patches.replace(c10d.Work, name, lambda original: _query(device, original))
    # What is called in between is done when the call returns; gloo has no such block.
    patches.replace(c10d.ProcessGroup, "_start_coalescing", lambda original: lambda *_: None)
    patches.replace(c10d.ProcessGroup, "_end_coalescing", lambda original: lambda *_: _Done())
    unwaited = _Unwaited(device)
    for name in _COLLECTIVES:
        patches.replace(c10d, name, unwaited.beginning)
    for name in ("wait", "synchronize", "block_current_stream"):
        patches.replace(c10d.Work, name, unwaited.ending)
    patches.replace(c10d.Work, "get_future", unwaited.promising)
    for name in ("then", "wait", "value"):  # a callback runs where the tensors are ready
        patches.replace(torch._C.Future, name, unwaited.keeping)
    stand_in_for_data_parallel(device, patches)
    for name, value in list(vars(dist).items()):  # the names that torch.distributed has of them
        stand_in = getattr(c10d, name, value)
        if callable(value) and stand_in is not value:
            patches.set(dist, name, stand_in)
    was_initialized = dist.is_initialized()
    try:
        yield
    finally:
        if dist.is_initialized() and not was_initialized:
            dist.destroy_process_group()


class _Groups:
    """The process groups, with the backend that each was asked for."""

    def __init__(self, device: ReducingDevice) -> None:
        self._device = device
        self._asked: dict[str, str] = {}  # by the group's name
        self._made = 0

    def backend_of(self, group: Any) -> str | None:
        """What was asked for; None for a group from before."""
        group = group or dist.distributed_c10d._get_default_group()
        return self._asked.get(getattr(group, "group_name", ""))

    def waits_for_the_device(self, group: Any) -> bool:
        """Whether what the host needs of others goes through the device: without a backend for the CPU."""
        asked = self.backend_of(group)
        return asked is not None and "nccl" in asked and "gloo" not in asked

    def initializing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = _signature_of(original)

        @wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs).arguments
            self._device.warms_groups_late = given.get("device_id") is None
            self._device.warm_groups.clear()
            asked = _on_gloo(given)
            has_ranks = any(n in given for n in ("init_method", "store", "rank", "world_size"))
            if not has_ranks and "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
                from torch._C._distributed_c10d import HashStore  # not in every build

                given.update(store=HashStore(), rank=0, world_size=1)
            elif "store" not in given and (meeting := store_of_group(self._made + 1)):
                self._made += 1
                given.update(zip(("store", "rank", "world_size"), meeting, strict=True))
                given.pop("init_method", None)
            original(**given)
            self._device.meeting.begin()
            self._note(dist.group.WORLD, asked)

        return init_process_group

    def making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = _signature_of(original)

        @wraps(original)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            inherited = self.backend_of(None) if given.get("backend") is None else None
            asked = _on_gloo(given)
            made = original(**given)
            self._note(made, inherited or asked)
            return made

        return new_group

    def telling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def get_backend(group: Any = None) -> Any:
            asked = self.backend_of(group)
            return original(group) if asked is None or "," in asked else asked

        return get_backend

    def _note(self, group: Any, asked: str) -> None:
        name = getattr(group, "group_name", None)  # a rank outside the group gets no group
        if name is not None:
            self._asked[name] = asked


def _on_gloo(given: dict[str, Any]) -> str:
    """Change a call's arguments to gloo's; returns the backend that was asked for."""
    asked = str(given.get("backend") or "cpu:gloo,cuda:nccl").lower()
    if "nccl" in asked:
        given["backend"] = "gloo"
        given.pop("pg_options", None)
        given.pop("device_id", None)
    given["timeout"] = min(given.get("timeout") or LIMIT, LIMIT)
    return asked


def _barrier(
    device: ReducingDevice, groups: _Groups, original: Callable[..., Any]
) -> Callable[..., Any]:
    """The host waits for the stream, also where it waits for the work of an asynchronous one."""

    @wraps(original)
    def barrier(group: Any = None, async_op: bool = False, *args: Any, **kwargs: Any) -> Any:
        _meet(device, "barrier()", group)
        if groups.waits_for_the_device(group):
            device.event(Barrier("torch.distributed.barrier()"))
        kwargs.pop("device_ids", None)
        with torch._C._DisableTorchDispatch():
            return original(group, async_op, **kwargs)

    return barrier


def _object_call(
    device: ReducingDevice, groups: _Groups, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Pickled objects travel as tensors of the device: copied there, and read on the host."""
    signature = _signature_of(original)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if original.__name__ not in _BETWEEN_TWO:
            _meet(device, f"{original.__name__}()", given.get("group"))
        if groups.waits_for_the_device(given.get("group")):
            device.event(ObjectsExchanged(f"torch.distributed.{original.__name__}()"))
            given.pop("device", None)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return original(**given)

    return call


def _meet(device: ReducingDevice, says: str, group: Any) -> None:
    device.meeting.collective(says, group or dist.distributed_c10d._get_default_group())


class _Done:
    """The work of a block of collectives, each of which is done."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


class _Unwaited:
    """The works that somebody got, until he waits: meanwhile NCCL may write their tensors."""

    def __init__(self, device: ReducingDevice) -> None:
        self._device, self._table = device, device.table
        self._works: dict[int, tuple[Any, frozenset[int]]] = {}  # a work that lives keeps its id
        self._futures: dict[int, tuple[Any, int]] = {}  # with the identity of their work

    def beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            work = original(*args, **kwargs)
            if isinstance(work, dist.Work):
                tensors = tensors_of_call(args, kwargs)
                numbers = frozenset(self._table.info(tensor).number for tensor in tensors)
                self._works[id(work)] = (work, numbers)
                self._tell()
            return work

        return collective

    def ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if self._works.pop(id(work), None) is not None:
                self._tell()
                if original.__name__ == "wait" and os.environ.get(_BLOCKING_WAIT) in _ON:
                    self._device.event(Query(f"Work.wait(), by {_BLOCKING_WAIT},"))
            with torch._C._DisableTorchDispatch():  # gloo copies a result to its place here
                return True if is_finished_transfer(work) else original(work, *args, **kwargs)

        return wait

    def promising(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def get_future(work: Any) -> Any:
            future = original(work)
            if id(work) in self._works:
                self._futures[id(future)] = (future, id(work))
            return future

        return get_future

    def keeping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def use(future: Any, *args: Any, **kwargs: Any) -> Any:
            _, work = self._futures.pop(id(future), (None, 0))
            if self._works.pop(work, None) is not None:
                self._tell()
            return original(future, *args, **kwargs)

        return use

    def _tell(self) -> None:
        written = (numbers for _, numbers in self._works.values())
        self._table.unwaited = frozenset().union(*written)


def _query(device: ReducingDevice, original: Callable[..., Any]) -> Callable[..., Any]:
    def query(self: Any) -> Any:
        device.event(Query(f"Work.{original.__name__}()"))
        return original(self)

    return query
