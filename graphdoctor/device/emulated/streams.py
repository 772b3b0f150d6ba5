"""Streams and events of the emulated device, and what CUDA refuses of their order during a capture.

Work runs at once; waits and queries are tracked.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any, Protocol

import torch

from graphdoctor.device.emulated.logical import LogicalDevice
from graphdoctor.device.observe.earlier_graphs import EarlierGraphs
from graphdoctor.device.observe.operators import Call, Observer, tensors_of
from graphdoctor.values.host_events import (
    ELAPSED_TIME,
    EVENT_QUERY,
    EVENT_SYNCHRONIZE,
    STREAM_QUERY,
    STREAM_SYNCHRONIZE,
    CaptureQuery,
    StreamSwitch,
    UnorderedWork,
)

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
OUTSIDE = "CUDA error: dependency created on uncaptured work in another stream"
UNJOINED = "CUDA error: capturing stream has unjoined work"


class StreamingDevice(LogicalDevice, Protocol):
    """A device with streams; `order` is that of the capture under way, or of one assumed."""

    streams: StreamState
    order: StreamOrder | None


class StreamState:
    """The device's default stream, and each thread's current one."""

    def __init__(self, device: StreamingDevice) -> None:
        self.device = device
        self.created = 0
        self.default = EmulatedStream.make(self, is_default=True)
        self._chosen = threading.local()
        self.captured_nodes: list[range] = []  # of autograd, by their numbers

    @property
    def current(self) -> EmulatedStream:
        chosen: EmulatedStream = getattr(self._chosen, "stream", self.default)
        return chosen

    @current.setter
    def current(self, stream: EmulatedStream) -> None:
        self._chosen.stream = stream

    def switch_to(self, stream: EmulatedStream) -> None:
        """Make a stream the current one, as the step asked."""
        self.current = stream
        self.device.event(StreamSwitch("torch.cuda.stream()"))

    def tell_of_wait(self, name: str, refusal: str | None) -> None:
        if refusal is not None:
            self.device.event(UnorderedWork(name, refusal=refusal))


class EmulatedStream:
    """Stands in for torch.cuda.Stream. Work runs at once, in the order the host issues it."""

    state: StreamState

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self._set_up(type(self).state, is_default=False, priority=priority)

    @staticmethod
    def make(state: StreamState, *, is_default: bool) -> EmulatedStream:
        stream = EmulatedStream.__new__(EmulatedStream)
        stream._set_up(state, is_default=is_default, priority=0)
        return stream

    def _set_up(self, state: StreamState, *, is_default: bool, priority: int) -> None:
        self._state = state
        self.is_default = is_default
        self.priority = priority
        self.stream_id = self.cuda_stream = state.created
        self.device_index = state.device.rank.index
        self.device_type = 1
        self._before: list[EmulatedStream] = []
        state.created += 1

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)

    def wait_event(self, event: EmulatedEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: EmulatedStream) -> None:
        order = self._state.device.order
        if order is not None:
            refusal = order.wait(self, stream, work=order.work_on(stream))
            self._state.tell_of_wait("torch.cuda.Stream.wait_stream()", refusal)

    def record_event(self, event: EmulatedEvent | None = None) -> EmulatedEvent:
        event = event if event is not None else EmulatedEvent.of(self._state)
        event.record(self)
        return event

    def query(self) -> bool:
        self._state.device.event(STREAM_QUERY)
        return True

    def synchronize(self) -> None:
        self._state.device.event(STREAM_SYNCHRONIZE)

    def is_capturing(self) -> bool:
        self._state.device.event(CaptureQuery("torch.cuda.Stream.is_capturing()"))
        return self._state.device.is_capturing

    def __enter__(self) -> EmulatedStream:
        self._before.append(self._state.current)
        self._state.switch_to(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._state.current = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmulatedStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Stream device=cuda:{self.device_index} cuda_stream={self.stream_id:#x}>"
        )


class EmulatedEvent:
    """Stands in for torch.cuda.Event. Times are not emulated: elapsed_time() is 0.0 ms."""

    state: StreamState

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._state = type(self).state
        self.external = external
        self._recorded_on: EmulatedStream | None = None
        self._recorded_in: tuple[StreamOrder | None, int] = (None, 0)

    @classmethod
    def of(cls, state: StreamState) -> EmulatedEvent:
        event = cls.__new__(cls)
        event._state, event.external, event._recorded_on = state, False, None
        event._recorded_in = (None, 0)
        return event

    @property
    def cuda_event(self) -> int:
        return id(self) if self._recorded_on is not None else 0

    def record(self, stream: EmulatedStream | None = None) -> None:
        on = self._recorded_on = stream if stream is not None else self._state.current
        order = self._state.device.order
        self._recorded_in = (order, order.work_on(on) if order is not None else 0)

    def wait(self, stream: EmulatedStream | None = None) -> None:
        waiting = stream if stream is not None else self._state.current
        order = self._state.device.order
        if order is None or self._recorded_on is None or self.external:
            return
        recorded_in, work = self._recorded_in
        if recorded_in is order:
            refusal = order.wait(waiting, self._recorded_on, work=work)
        else:  # recorded before this capture, on whatever stream
            refusal = OUTSIDE if order.includes(waiting) else None
        self._state.tell_of_wait("torch.cuda.Stream.wait_event()", refusal)

    def query(self) -> bool:
        self._state.device.event(EVENT_QUERY)
        return True

    def synchronize(self) -> None:
        self._state.device.event(EVENT_SYNCHRONIZE)

    def elapsed_time(self, end_event: EmulatedEvent) -> float:
        self._state.device.event(ELAPSED_TIME)
        return 0.0


class EmulatedStreamContext:
    """Stands in for torch.cuda.stream(s) and torch.cuda.StreamContext; None changes nothing."""

    state: StreamState

    def __init__(self, stream: EmulatedStream | None) -> None:
        self.stream = stream
        self._before: EmulatedStream | None = None

    def __enter__(self) -> None:
        self._before = self.state.current
        if self.stream is not None:
            self.state.switch_to(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        assert self._before is not None
        self.state.current = self._before


class StreamOrder(Observer):
    """Forks and joins of one capture, or of one run of a step as if it were captured.

    A stream belongs to the capture once it has waited for one that does, and has joined it when
    one that does has waited for all of its work. It observes the operators, and tells the device
    of what goes wrong as `stream-order` events: the detail is CUDA's error, or empty where CUDA
    runs the work at once and leaves it out of the graph.
    """

    def __init__(self, device: StreamingDevice) -> None:
        self._device = device
        self.origin = device.streams.current
        self._members = {self.origin}
        self._work: Counter[EmulatedStream] = Counter()
        self._joined: Counter[EmulatedStream] = Counter()
        self._earlier = EarlierGraphs(device, partial(_was_captured, device.streams))

    def includes(self, stream: EmulatedStream) -> bool:
        """Whether work on a stream is captured."""
        return stream in self._members

    def work_on(self, stream: EmulatedStream) -> int:
        """How much work was put on a stream so far."""
        return self._work[stream]

    def wait(self, waiting: EmulatedStream, waited_for: EmulatedStream, *, work: int) -> str | None:
        """Note that a stream waits for so much work of another; the error, where CUDA refuses."""
        if waited_for not in self._members:
            return OUTSIDE if waiting in self._members else None
        self._members.add(waiting)
        if work > self._joined[waited_for]:
            self._joined[waited_for] = work
            if waited_for != self.origin:
                self._work[waiting] += 1  # what it waited for has to be waited for in turn
        return None

    def unjoined(self) -> list[EmulatedStream]:
        """Streams with captured work that nobody waited for."""
        return [
            stream
            for stream, done in self._work.items()
            if stream != self.origin and done > self._joined[stream]
        ]

    def before(self, call: Call) -> None:
        self._earlier.before(call)

    def nodes(self) -> range:
        """The numbers of autograd's nodes that were made since the capture began."""
        return range(self._earlier.first_node, torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]

    def after(self, call: Call) -> None:
        if not call.on_cuda or torch._C._current_autograd_node() is not None:
            return  # autograd forks and joins by itself
        makes = any(self._device.table.info(t) not in call.infos for t in tensors_of(call.result))
        if not makes and not call.facts.written_args and not call.facts.written_kwargs:
            return  # a view is no work
        stream = self._device.streams.current
        if stream in self._members:
            self._work[stream] += 1
        else:
            # Memory for a stream that is not captured comes from the driver, which refuses.
            refusal = CAPTURING if makes else ""
            self._device.event(UnorderedWork(call.facts.name, refusal=refusal))


def _was_captured(streams: StreamState, number: int) -> bool:
    """An earlier capture made a node, on a stream for captures: make_graphed_callables does so."""
    return any(number in nodes for nodes in streams.captured_nodes)
