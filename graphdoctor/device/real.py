"""A real CUDA device, observed with the observers of the emulated device."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Final

import torch

from graphdoctor.device.observe.dispatch import ObservedMode
from graphdoctor.device.observe.earlier_graphs import EarlierGraphs, WhereMade
from graphdoctor.device.observe.host_calls import (
    RNG_CALLS,
    answer_as_captured,
    note_refused_optimizers,
    rng_call_name,
    rng_event,
    stand_in_for_ctc_loss,
    telling_repr,
)
from graphdoctor.device.observe.meeting import meeting_of_process
from graphdoctor.device.observe.operators import Call, Observer, tensors_of
from graphdoctor.device.observe.patches import Patches
from graphdoctor.device.observe.storages import StorageInfo, StorageTable
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.host_events import IS_CAPTURING, WATCHED_CALLS, HostEvent


class RealStorageTable(StorageTable):
    """Storages of tensors that know themselves where they lie."""

    def is_cuda(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_cuda and tensor.is_pinned()

    def _add(self, storage: torch.UntypedStorage) -> StorageInfo:
        info = super()._add(storage)
        info.pinned = storage.device.type == "cpu" and storage.is_pinned()
        return info


class WatchingMode(ObservedMode):
    """Runs each operator as it is; the tensors know where they lie."""

    def place(self, call: Call) -> None:
        call.on_cuda = any([tensor.is_cuda for tensor in call.inputs])

    def run(self, call: Call) -> None:
        call.result = call.func(*call.args, **call.kwargs)
        call.on_cuda = call.on_cuda or any(tensor.is_cuda for tensor in tensors_of(call.result))


class CaptureMode(WatchingMode):
    """Lets torch.compile work below it as it does without."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Newer torch compiles nothing under a mode that does not say so."""
        return True


def _segments() -> Iterator[tuple[range, dict[str, Any]]]:
    """The memory that torch's own allocator has, by address; nothing of another allocator."""
    if torch.cuda.get_allocator_backend() != "native":
        return
    for segment in torch.cuda.memory_snapshot():
        begins = segment["address"]
        yield range(begins, begins + segment["total_size"]), segment


def private_pools() -> list[range]:
    """The addresses of graphs' private pools, where torch's own allocator says them."""
    return [
        memory
        for memory, segment in _segments()
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    ]


def own_memory() -> AbstractContextManager[object]:
    """Give new tensors memory that nobody else frees, if torch's own allocator can."""
    pool = _own_pool() if torch.cuda.get_allocator_backend() == "native" else None
    return nullcontext() if pool is None else torch.cuda.use_mem_pool(pool)


@cache
def _own_pool() -> Any:
    pool = torch.cuda.MemPool()
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1, device="cuda")
    except RuntimeError:  # some versions refuse a pool of expandable segments (pytorch#148378)
        return None
    # It lives as long as the process: destroying a pool after a capture has failed ends the process with an abort.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    return pool


def reserved_memory(address: int, size: int, device: torch.device) -> torch.UntypedStorage | None:
    """The bytes at an address, which a graph reads although they are freed; None if the allocator gave them back."""
    if not any(
        memory.start <= address and address + size <= memory.stop for memory, _ in _segments()
    ):
        return None
    made: Any = torch._C._construct_storage_from_data_pointer(address, device, size)
    found: torch.UntypedStorage = made
    return found


class WatchedDevice:
    """The current CUDA device. `was_asked`: whether code that only assumed a capture ever asked for one."""

    kind: Final = "cuda"
    has_values = True

    def __init__(self) -> None:
        self.was_asked = False
        self.meeting = meeting_of_process()
        self.table: StorageTable = RealStorageTable()
        self.assumes_capture = False
        self._observers: tuple[Observer, ...] = ()
        self._lock = threading.Lock()
        self._patches = Patches()  # of all threads
        self._lasting = Patches()
        self._where_made = WhereMade(self, _is_on_default_stream)
        self._side = ExitStack()

    def __enter__(self) -> WatchedDevice:
        if torch.distributed.is_available():
            self._where_made.look_at_making(self._lasting)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._side.close()
        self._lasting.undo()
        self.table.close()

    def leave_default_stream(self) -> None:
        """Run what follows on a side stream, as torch advises for the warmup of a capture.

        Autograd accumulates a gradient on the stream on which the accumulation was first made, and keeps
        it while any tensor refers to it. No capture may depend on the default stream.
        """
        if not torch.cuda.is_available() or not _is_on_default_stream():
            return
        default, side = torch.cuda.current_stream(), _side_stream(torch.cuda.current_device())
        side.wait_stream(default)
        self._side.callback(default.wait_stream, side)
        self._side.enter_context(torch.cuda.stream(side))

    def event(self, event: HostEvent) -> None:
        for observer in self._observers:
            observer.event(event)

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Let an observer see every operator, and calls of torch.cuda that a capture forbids."""
        before = self._observers
        earlier = (EarlierGraphs(self),) if self.assumes_capture else ()
        self._observers = (*before, *earlier, observer)
        try:
            with Patches() as patches, WatchingMode(self.table, self._observers):
                self._tell_of_calls(patches)
                yield
        finally:
            self._observers = before

    @contextmanager
    def observed_in_this_thread(self, observer: Observer, table: StorageTable) -> Iterator[None]:
        """The same for one of several threads, each of which may have an observer and a table of its own.

        Of calls of torch.cuda an observer is told whichever thread makes them.
        """
        with self._lock:
            if not self._observers:
                self._patches = Patches()
                self._tell_of_calls(self._patches)
            self._observers = (*self._observers, observer)
        try:
            with WatchingMode(table, (observer,)):
                yield
        finally:
            with self._lock:
                self._observers = tuple(one for one in self._observers if one is not observer)
                if not self._observers:
                    self._patches.undo()

    @contextmanager
    def assuming_capture(self) -> Iterator[None]:
        """Let `is_current_stream_capturing()` answer true, while nothing is captured."""
        self.assumes_capture = True
        try:
            with Patches() as patches:
                answer_as_captured(patches, self._note_question)
                note_refused_optimizers(self, patches)
                yield
        finally:
            self.assumes_capture = False

    def _note_question(self) -> None:
        self.was_asked = True

    def put(self, tensor: torch.Tensor) -> None:
        """Move a tensor to the device, as the same tensor object."""
        tensor.data = tensor.data.cuda()

    def device_name_of(self, tensor: torch.Tensor, info: StorageInfo) -> str:
        return _name_of(tensor.device)

    def _tell_of_calls(self, patches: Patches) -> None:
        def telling(event: HostEvent, original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self.event(event)
                return original(*args, **kwargs)

            return call

        stand_in_for_ctc_loss(patches)
        patches.replace(torch._tensor_str, "_str", lambda original: telling_repr(self, original))
        for event in WATCHED_CALLS:
            *path, method = event.name.removesuffix("()").removeprefix("torch.").split(".")
            owner: Any = torch
            for part in path:
                owner = getattr(owner, part)
            patches.replace(owner, method, partial(telling, event))
        for method in RNG_CALLS:
            for module in (torch.cuda, torch.cuda.random):
                patches.replace(module, method, partial(self._telling_of_seed, method))
        for module in (torch.cuda, torch.cuda.graphs):
            patches.replace(module, "is_current_stream_capturing", self._telling_of_question)
        if torch.distributed.is_available():
            self._where_made.tell_of_runs(patches)

    def _telling_of_question(self, original: Callable[[], bool]) -> Callable[[], bool]:
        def is_capturing() -> bool:
            if not is_machinery(sys._getframe(1).f_code.co_filename):
                self.event(IS_CAPTURING)
            return original()

        return is_capturing

    def _telling_of_seed(self, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            argument = args[0] if args else next(iter(kwargs.values()), None)
            name = rng_call_name(method, sys._getframe(1))
            event = rng_event(
                name, method, argument, current_seed=_current_seed, seed_of=_seed_of_state
            )
            self.event(event)
            return original(*args, **kwargs)

        return call


_name_of = cache(str)  # of a device: each recorded tensor needs it


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all analyses: for each stream that multiplies matrices cuBLAS keeps a workspace of 34 MB."""
    return torch.cuda.Stream(device)


def _is_on_default_stream() -> bool:
    return bool(torch.cuda.current_stream() == torch.cuda.default_stream())


def _current_seed() -> int:
    return int(torch.cuda.default_generators[torch.cuda.current_device()].initial_seed())


def _seed_of_state(state: torch.Tensor) -> int:
    """A CUDA generator's state begins with its seed, in 8 bytes."""
    return int(state[:8].view(torch.int64).item())
