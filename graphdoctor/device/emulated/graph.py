"""The emulated `torch.cuda.CUDAGraph`, with the refusals of a real capture and replays in place."""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import ExitStack
from itertools import count
from typing import Any, Protocol

import torch

from graphdoctor.device.emulated.streams import (
    CAPTURING,
    UNJOINED,
    EmulatedStream,
    StreamingDevice,
    StreamOrder,
)
from graphdoctor.device.observe.host_calls import refuses_pageable_copies
from graphdoctor.device.observe.interpreter import no_collection
from graphdoctor.device.observe.operators import Call, Observer, written_tensors
from graphdoctor.device.observe.storages import (
    StorageInfo,
    StorageTable,
    Values,
    arg_of,
    parts_of,
    use_of,
)
from graphdoctor.device.observe.tape import Tape
from graphdoctor.operators import COPIES, fact_about, load_table
from graphdoctor.operators.table import WAITING_NODES
from graphdoctor.target.frames import locate
from graphdoctor.values.host_events import REPLAY, HostEvent, MayBeRefused
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op, TensorUse

_PAGEABLE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def refusal_of_call(call: Call, table: StorageTable) -> str | None:
    """Why the driver, or torch, would refuse this operator during a capture."""
    name = call.facts.base_name
    node = torch._C._current_autograd_node()
    if node is not None and node.name() in WAITING_NODES and any(t.dim() for t in call.inputs):
        return f"{CAPTURING} ({node.name()}: it looks for zeros on the host)"
    if name in COPIES:
        return _refusal_of_copy(call, table)
    if not call.on_cuda or name not in load_table().hazards:
        return None
    fact = fact_about(_recorded(call, table))
    return _because(call, f"it {fact.why}") if fact is not None else None


def _recorded(call: Call, table: StorageTable) -> Op:
    """The call as a recording has it, as far as a condition may look."""

    def use(tensor: torch.Tensor) -> TensorUse:
        info = table.info(tensor)
        return use_of(tensor, info, "cuda:0" if info.cuda else "cpu")

    kwargs = tuple((name, arg_of(value, use)) for name, value in call.kwargs.items())
    return Op(
        index=0, name=call.facts.name, args=tuple(arg_of(arg, use) for arg in call.args),
        kwargs=kwargs, outputs=(), writes=(), tags=(), phase="forward", module="", device="cuda:0",
    )  # fmt: skip


def _refusal_of_copy(call: Call, table: StorageTable) -> str | None:
    """Into memory of the host that the call makes itself, torch copies pinned and unblocked alike."""
    into_new = call.facts.base_name == "_to_copy"
    source = call.args[0 if into_new else 1]
    to_cuda = call.on_cuda if into_new else table.is_cuda(call.args[0])
    if table.is_cuda(source) == to_cuda or source.numel() == 0:
        return None
    if str(call.kwargs.get("device")) == "meta" or call.args[0].is_meta:  # nothing is copied
        return None
    if into_new:
        non_blocking = call.kwargs.get("non_blocking")
        pinned = table.is_pinned(source) if to_cuda else non_blocking
    else:
        by_name = call.kwargs.get("non_blocking")
        non_blocking = call.args[2] if len(call.args) > 2 else by_name
        pinned = table.is_pinned(source if to_cuda else call.args[0])
    if not pinned and refuses_pageable_copies():
        return f"{_PAGEABLE} ({call.facts.name})"
    if non_blocking:
        return None
    way = "host to device" if to_cuda else "device to host"
    return _because(call, f"a blocking copy from {way}")


def _because(call: Call, reason: str) -> str:
    return f"{CAPTURING} ({call.facts.name}: {reason})"


_POOLS = count(1)
_OWN_CAPTURES = "graphdoctor.graphs.capture"
_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
    "wrong device or stream."
)


class CapturingDevice(StreamingDevice, Protocol):
    """A device that a graph can be captured on."""

    capturing: EmulatedGraph | None
    broken_off: int

    def attach(self, observer: Observer) -> None: ...

    def detach(self, observer: Observer) -> None: ...


class EmulatedGraph:
    """Records the operators of a capture, and runs them again in place.

    A real capture executes nothing. Here the operators do run, so that Python can go on; afterwards
    the contents of every storage that was there before, and the generator, are put back.
    """

    device: CapturingDevice

    def __init__(self, keep_graph: bool = False) -> None:
        self._device = type(self).device
        self._pool = (0, next(_POOLS))
        self.tape: Tape | None = None
        self._generators = {_identity(torch.default_generator)}
        self._finished = False
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._invalid: str | None = None
        self._order: StreamOrder | None = None
        self._under_way = ExitStack()
        self.is_users = False  # and none that graphdoctor makes, whose warm-ups are fewer here

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        device = self._device
        if device.streams.current.is_default:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        if device.capturing is not None:
            raise RuntimeError(CAPTURING)
        if pool is not None:
            self._pool = pool
        self.tape = Tape(device.table, one_generator=True)
        self._finished = False
        self._invalid = None
        self._order = device.order = StreamOrder(device)
        self._mode, self._thread = capture_error_mode, threading.get_ident()
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") != _OWN_CAPTURES:
            frame = frame.f_back
        self.is_users = frame.f_globals.get("__name__") != _OWN_CAPTURES
        self._rng = torch.get_rng_state()
        self._newest_before = device.table.info(torch.empty(0)).number
        # With finalizers, the same capture would fail in some runs only.
        self._under_way.enter_context(no_collection())
        device.capturing = self
        device.attach(self)

    def capture_end(self) -> None:
        if self._device.capturing is not self:
            raise RuntimeError("CUDA error: capture was not initiated in this stream")
        self._device.detach(self)
        self.abandon()
        if self._invalid is not None:
            self.tape = None
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        assert self._order is not None
        if self._order.unjoined():
            self.tape = None
            raise RuntimeError(UNJOINED)
        self._device.streams.captured_nodes.append(self._order.nodes())
        self._finished = True
        if not self.operators:
            warnings.warn(_EMPTY, stacklevel=2)

    def abandon(self) -> None:
        """Leave the capture, with the state that it began with."""
        self._under_way.close()
        self._device.capturing = self._device.order = None
        for storage, contents in self._saved.values():
            if storage.size() != contents.size():
                storage.resize_(contents.size())
            storage.copy_(contents)
        self._saved.clear()
        torch.set_rng_state(self._rng)

    def replay(self) -> None:
        if self.tape is None or not self._finished:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._device.event(REPLAY)
        self.tape.replay()

    def reset(self) -> None:
        other = self._device.capturing
        if self._finished and other is not None and other is not self:
            other.spoil(f"{CAPTURING} (function reset)")  # torch only warns here
        self.tape = None
        self._finished = False

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> Any:
        return self._pool

    def instantiate(self) -> None:
        """Nothing to do: the recording is what is replayed."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the capture draw from a generator other than the default one."""
        self._generators.add(_identity(generator))

    def enable_debug_mode(self) -> None:
        """Nothing to do: there is no driver's graph to dump."""

    def last_writer(self, tensor: torch.Tensor) -> tuple[str, Location | None] | None:
        """The last captured operator that wrote into a tensor, and the line that called it."""
        return self.tape.last_writer(tensor) if self.tape is not None else None

    @property
    def operators(self) -> int:
        return len(self.tape.entries) if self.tape is not None else 0

    # What the device tells a capture under way.

    def before(self, call: Call) -> None:
        assert self._order is not None
        self._order.before(call)
        reason = refusal_of_call(call, self._device.table) or self._refusal_of_generator(call)
        if reason is not None:
            self._refuse(reason)
        for tensor in written_tensors(call.facts, call.args, call.kwargs):
            for part in parts_of(tensor):
                self._save_storage(self._device.table.info(part), part.untyped_storage())

    def after(self, call: Call) -> None:
        assert self.tape is not None and self._order is not None
        self._order.after(call)
        if not call.on_cuda or self.includes(self._device.streams.current):
            self.tape.add(call, locate().location)

    def event(self, event: HostEvent) -> None:
        """Events are refused by `refuse_event`, after every observer has seen them."""

    def includes(self, stream: EmulatedStream) -> bool:
        """Whether work on a stream is captured: it is the capture's own, or forked from it."""
        return self._order is not None and self._order.includes(stream)

    def refuse_event(self, event: HostEvent) -> None:
        """Another thread is forbidden the same in "global" mode only."""
        if self._mode != "global" and threading.get_ident() != self._thread:
            return
        if event.is_refused:
            self._refuse(f"{CAPTURING} ({event.name})")
        elif isinstance(event, MayBeRefused) and event.refusal:
            self._refuse(event.refusal)

    def _refusal_of_generator(self, call: Call) -> str | None:
        """A generator of one's own is captured only after it was registered with the graph."""
        generator = call.kwargs.get("generator")
        if not call.on_cuda or generator is None or _identity(generator) in self._generators:
            return None
        return "Attempt to increase offset for a CUDA generator not in capture mode."

    def _refuse(self, text: str) -> None:
        self.spoil(text)
        raise RuntimeError(text)

    def spoil(self, text: str) -> None:
        """Let the capture fail at its end."""
        self._invalid = text
        self._device.broken_off += 1

    def _save_storage(self, info: StorageInfo, storage: torch.UntypedStorage) -> None:
        is_old = info.cuda and info.number <= self._newest_before
        if is_old and info.number not in self._saved and info.values is not Values.NONE:
            self._saved[info.number] = (storage, storage.clone())

    def resize(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """Before a storage is freed, or gets memory again."""
        info = self._device.table.info_of(storage)
        if self.tape is not None and info is not None and info.cuda:
            with (
                torch._C._DisableTorchDispatch()
            ):  # the copy is ours: the capture has not to see it
                self._save_storage(info, storage)
            self.tape.add_resize(storage, size_bytes)


def _identity(generator: Any) -> int:
    """Which generator it is: torch hands operators another wrapper of the same one."""
    identity: int = generator._cdata
    return identity
