"""The device of `with EmulatedDevice():`, on which code for "cuda" runs on the CPU as on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from graphdoctor.device.emulated.cuda import stand_in_for_cuda
from graphdoctor.device.emulated.functions import LogicalFunctionMode
from graphdoctor.device.emulated.graph import EmulatedGraph
from graphdoctor.device.emulated.logical import LocalRank, LogicalDevice
from graphdoctor.device.emulated.methods import (
    default_device_kept,
    stand_in_for_legacy_types,
    stand_in_for_methods,
)
from graphdoctor.device.emulated.process_groups import stand_in_for_process_groups
from graphdoctor.device.emulated.shapes import Shapes
from graphdoctor.device.emulated.stand_ins import (
    stand_in_for_addresses,
    stand_in_for_python,
    stand_in_for_saving,
    stand_in_for_sharding,
    stand_in_for_threads,
)
from graphdoctor.device.emulated.streams import (
    UNJOINED,
    StreamOrder,
    StreamState,
)
from graphdoctor.device.observe.collectives import COLD, Called, called
from graphdoctor.device.observe.dispatch import LogicalDeviceMode
from graphdoctor.device.observe.fallback import EmulationLimit, run_operator
from graphdoctor.device.observe.host_calls import stand_in_for_ctc_loss
from graphdoctor.device.observe.meeting import meeting_of_process
from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.patches import Patches, hide_function_mode_from_python
from graphdoctor.device.observe.storages import StorageInfo, StorageTable
from graphdoctor.values.errors import UsageError
from graphdoctor.values.host_events import AssumedValue, ColdGroup, HostEvent, UnorderedWork

# Whoever has an address of the memory that is emulated could write there unseen. Results of the device share
# memory until somebody writes into it (`observe/known_results.py`, `graphs/region_run.py`), and torch parts
# them by the writes that it sees: so nobody else may have the device's memory, as NumPy has none of a GPU's.

_REFUSED = (
    "The emulated CUDA device has no memory on a GPU that another library could take by DLPack"
)
_CUDA = 2  # kDLCUDA


def stand_in_for_dlpack(device: LogicalDevice, patches: Patches) -> None:
    """Let torch take the device's tensors from itself, and refuse them to all others."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def hand_out(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if device.table.is_cuda(tensor):
                raise EmulationLimit(_REFUSED)
            return original(tensor, *args, **kwargs)

        return hand_out

    def telling(original: Callable[..., Any]) -> Callable[..., Any]:
        def device_of(tensor: torch.Tensor) -> Any:
            if not device.table.is_cuda(tensor):
                return original(tensor)
            return torch.utils.dlpack.DLDeviceType(_CUDA), device.rank.index

        return device_of

    def taking(original: Callable[..., Any]) -> Callable[..., Any]:
        def from_dlpack(ext_tensor: Any, **kwargs: Any) -> Any:
            if not isinstance(ext_tensor, torch.Tensor) or not device.table.is_cuda(ext_tensor):
                return original(ext_tensor, **kwargs)
            if ext_tensor.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            to = {name: value for name, value in kwargs.items() if value is not None}
            same = ext_tensor.detach()
            return same.to(to.get("device", same.device), copy=bool(to.get("copy")))

        return from_dlpack

    patches.replace(torch.Tensor, "__dlpack__", refusing)
    patches.replace(torch.Tensor, "__dlpack_device__", telling)
    patches.replace(torch._C, "_to_dlpack", refusing)
    patches.replace(torch.utils.dlpack, "to_dlpack", refusing)
    patches.replace(torch, "to_dlpack", refusing)
    patches.replace(torch.utils.dlpack, "from_dlpack", taking)
    patches.replace(torch, "from_dlpack", taking)


_entered: list[EmulatedDevice] = []  # one at most


def entered() -> EmulatedDevice | None:
    """The device that is emulated now, or None."""
    return _entered[-1] if _entered else None


class EmulatedDevice:
    """One CUDA device that is not there.

    Storages carry a logical device; operators run on the CPU; `torch.cuda` is stood in for, and put
    back on leaving. It is there for this thread and for those that begin inside. `was_asked`: whether
    anything asked while a capture was assumed, code of ours that does something else then among that.
    """

    kind: Final = "emulated"
    capability = (9, 0)

    def __init__(self, *, name: str = "emulated CUDA device") -> None:
        self.name = name
        self.rank = LocalRank.of_environment()
        self.meeting = meeting_of_process()
        self.table = StorageTable()
        self.streams = StreamState(self)
        self.capturing: EmulatedGraph | None = None
        self.broken_off = 0  # captures that were refused; runs that failed, also on another rank
        self.order: StreamOrder | None = None  # of the capture under way, or of one assumed
        self.assumes_capture = False
        self.was_asked = False
        self.passed_compiler_by = False  # torch.compile was called, and gave the eager code back
        self.assumptions = 0  # how often a value was assumed, so far
        self.shapes: Shapes | None = None  # what runs operators where they run on shapes only
        self.unplaced: set[int] = set()  # storages of meta, which are put where others are
        self.warm_groups: set[str] = set()  # by name: NCCL has made their communicators
        self.warms_groups_late = True  # in their first call, and not when they are made
        self._modes = threading.local()
        self._stack: ExitStack | None = None

    def __enter__(self) -> EmulatedDevice:
        if _entered:
            raise UsageError(
                "A CUDA device is emulated already: leave it before you enter another."
            )
        with ExitStack() as stack:
            stack.callback(self.table.close)
            stack.enter_context(default_device_kept())
            stack.callback(self._reset_streams)
            patches = stack.enter_context(Patches())
            hide_function_mode_from_python(patches)
            stand_in_for_cuda(self, patches)
            stand_in_for_methods(self, patches)
            stand_in_for_ctc_loss(patches)
            stand_in_for_dlpack(self, patches)
            stand_in_for_python(self, patches)
            stand_in_for_legacy_types(self, patches)
            stand_in_for_saving(self, patches)
            stand_in_for_threads(self, patches)
            stand_in_for_addresses(self, patches)
            stand_in_for_sharding(self, patches)
            stack.enter_context(stand_in_for_process_groups(self, patches))
            patches.reach_imported_names()
            stack.enter_context(self.in_this_thread())
            self._stack = stack.pop_all()
        _entered.append(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        _entered.remove(self)
        stack.close()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Afterwards tensors lie where they lay before, and what is known of the code is as before."""
        names = (
            "passed_compiler_by", "was_asked", "assumptions", "shapes", "unplaced",
        )  # fmt: skip
        before = {name: getattr(self, name) for name in names}
        self.passed_compiler_by = self.was_asked = False
        self.unplaced = set(self.unplaced)
        try:
            with self.table.kept():
                yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def _reset_streams(self) -> None:
        if self.capturing is not None:
            self.capturing.abandon()
        self.streams.current = self.streams.default

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Emulate the device in the calling thread: torch's modes belong to one thread each."""
        dispatch = self._modes.dispatch = LogicalDeviceMode(self.table, self._run)
        try:
            with dispatch, LogicalFunctionMode(self, dispatch):
                yield
        finally:
            del self._modes.dispatch

    def _run(self, call: Call) -> Any:
        if self.shapes is None:
            if call.facts.is_collective and (this := called(call)) is not None:
                self.meeting.collective(this.says, this.group)
                self._warm(this, call)
            return run_operator(call)
        if call.facts.is_collective:
            raise EmulationLimit(
                f"{call.facts.name} sends values, and the step runs on shapes only"
            )
        return self.shapes.run(call)

    def _warm(self, this: Called, call: Call) -> None:
        """NCCL makes a group's communicator in its first call, if it has not been told the device."""
        name = this.group.group_name
        if not call.on_cuda or name in self.warm_groups:
            return
        if not self.is_capturing:
            self.warm_groups.add(name)
        elif self.warms_groups_late:
            self.event(ColdGroup(f"torch.distributed.{this.name}()", refusal=COLD))

    @property
    def is_captured_by_user(self) -> bool:
        """Whether a capture is under way that the user's code began."""
        return self.capturing is not None and self.capturing.is_users

    @property
    def has_values(self) -> bool:
        """Whether operators compute; false after `leave_values_out`."""
        return self.shapes is None

    def leave_values_out(self) -> None:
        """Run every operator on shapes only from now on; what is made of Python's numbers keeps its values."""
        self.shapes = Shapes(self.table, self.event)

    @property
    def _dispatch(self) -> LogicalDeviceMode:
        mode: LogicalDeviceMode = self._modes.dispatch
        return mode

    @property
    def is_capturing(self) -> bool:
        self.was_asked = self.was_asked or self.assumes_capture
        if self.capturing is None:
            return self.assumes_capture
        return self.assumes_capture or self.capturing.includes(self.streams.current)

    def run_with_target(
        self,
        cuda: bool | None,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a C function whose results go to CUDA, or the CPU, wherever its arguments are."""
        before = self._dispatch.target
        self._dispatch.target = cuda
        try:
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        finally:
            self._dispatch.target = before

    @contextmanager
    def making_on_cuda(self) -> Iterator[None]:
        """Let what C++ makes in this block with a device of its own choice lie on the device."""
        dispatch = self._dispatch
        before, dispatch.target = dispatch.target, True
        try:
            yield
        finally:
            dispatch.target = before

    def event(self, event: HostEvent) -> None:
        """Tell the observers what the host did; raises where a capture under way forbids it."""
        self.assumptions += isinstance(event, AssumedValue)
        mode = getattr(self._modes, "dispatch", None)  # None in a thread from before
        for observer in mode.observers if mode is not None else ():
            observer.event(event)
        if self.capturing is not None:
            self.capturing.refuse_event(event)

    def state_was_read(self, state: torch.Tensor) -> None:
        """Tell a capture under way what the random generator's state is."""
        if self.capturing is not None and self.capturing.tape is not None:
            self.capturing.tape.host_draws.read_state(state)

    def state_was_set(self, state: torch.Tensor) -> None:
        """Tell a capture under way to what the random generator's state was set."""
        if self.capturing is not None and self.capturing.tape is not None:
            self.capturing.tape.host_draws.set_state(state)

    def attach(self, observer: Observer) -> None:
        """Let a capture observe, which ends by a call of its own, or never."""
        self._dispatch.observers = (*self._dispatch.observers, observer)

    def detach(self, observer: Observer) -> None:
        self._dispatch.observers = tuple(o for o in self._dispatch.observers if o is not observer)

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Let an observer see every operator and host event. Ranks wait for each other at the end, failed or not."""
        try:
            with self.meeting.run(), self._observed_by(observer):
                yield
        except Exception:
            self.broken_off += 1
            raise

    @contextmanager
    def _observed_by(self, observer: Observer) -> Iterator[None]:
        before = self._dispatch.observers
        order = StreamOrder(self) if self.assumes_capture and self.order is None else None
        self._dispatch.observers = (*before, *((order,) if order is not None else ()), observer)
        self.order = order or self.order
        try:
            yield
            if order is not None and order.unjoined():
                self.event(UnorderedWork("torch.cuda.stream()", refusal=UNJOINED))
        finally:
            self._dispatch.observers = before
            if order is not None:
                self.order = None

    @contextmanager
    def assuming_capture(self) -> Iterator[None]:
        """Let `is_current_stream_capturing()` answer true, without forbidding anything."""
        self.assumes_capture = True
        try:
            yield
        finally:
            self.assumes_capture = False

    def put(self, tensor: torch.Tensor) -> None:
        """Declare that a tensor's storage lies on the device, in place and without a copy."""
        self.table.put_on_cuda(tensor)
        if self.shapes is not None and tensor.is_floating_point():
            self.table.take_values(tensor)

    def leave_default_stream(self) -> None:
        """Nothing: the emulated device knows by their order which nodes of autograd are from before a step."""

    def device_name_of(self, tensor: torch.Tensor, info: StorageInfo) -> str:
        """The logical device of a tensor with this storage: "cuda:0", on every rank, "meta" or "cpu"."""
        if info.cuda:
            return "cuda:0"
        return "meta" if tensor.is_meta else "cpu"
