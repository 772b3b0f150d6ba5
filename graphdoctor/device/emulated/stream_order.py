"""Work and waits on streams during a capture -> which of them CUDA refuses, or leaves out of the graph."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from graphdoctor.device.observe.dispatch import Call
from graphdoctor.device.observe.operators import tensors_of

if TYPE_CHECKING:
    from graphdoctor.device.emulated.device import EmulatedDevice
    from graphdoctor.device.emulated.streams import EmulatedStream

NOT_FORKED = "CUDA error: operation not permitted when stream is capturing"
OUTSIDE = "CUDA error: dependency created on uncaptured work in another stream"
UNJOINED = "CUDA error: capturing stream has unjoined work"
LEGACY = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
_NO_FORWARD = 2**64 - 1  # the sequence number of AccumulateGrad, which has no forward operator


class StreamOrder:
    """Forks and joins of one capture, or of one run of a step as if it were captured.

    A stream belongs to the capture once it has waited for one that does, and has joined it when
    one that does has waited for all of its work. It observes the operators, and tells the device
    of what goes wrong as `stream-order` events: the detail is CUDA's error, or empty where CUDA
    runs the work at once and leaves it out of the graph.
    """

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self.origin = device.streams.current
        self._members = {self.origin}
        self._work: Counter[EmulatedStream] = Counter()
        self._joined: Counter[EmulatedStream] = Counter()
        self._first_node = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        self._met_earlier_graph = False

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
        """See a backward pass that goes on into a graph from before: on that graph's own stream."""
        node = torch._C._current_autograd_node()
        if node is None or self._met_earlier_graph:
            return
        number = node._sequence_nr()
        if number != _NO_FORWARD and number < self._first_node and not self._was_captured(number):
            self._met_earlier_graph = True
            self._device.event("earlier-graph", node.name(), LEGACY)

    def nodes(self) -> range:
        """The numbers of autograd's nodes that were made since the capture began."""
        return range(self._first_node, torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]

    def _was_captured(self, number: int) -> bool:
        """An earlier capture made it, on a stream for captures: make_graphed_callables does so."""
        return any(number in nodes for nodes in self._device.streams.captured_nodes)

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
            self._device.event("stream-order", call.facts.name, NOT_FORKED if makes else "")

    def event(self, kind: str, name: str, detail: str) -> None:
        """Events between operators put no work on a stream."""
