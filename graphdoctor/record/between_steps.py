"""What a program does between its steps -> the lines on which the host waits for the device there."""

from __future__ import annotations

from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.target.frames import locate
from graphdoctor.target.program.studies import Waits
from graphdoctor.values.host_events import HostEvent

_READS = frozenset({"_local_scalar_dense", "equal", "nonzero"})
_COPIES = frozenset({"_to_copy", "copy_"})


class BetweenSteps(Observer):
    """Counts reads of values, copies to the host and synchronization. An observer of a device.

    It looks at the names of operators and where their tensors lie only, so it costs little.
    """

    def __init__(self, table: StorageTable, waits: Waits) -> None:
        self._table = table
        self._waits = waits

    def after(self, call: Call) -> None:
        """Note what the host had to wait for."""
        name = call.facts.base_name
        if name in _READS and any(map(self._table.is_cuda, call.inputs)):
            self._note("reads a value of the device")
        elif name in _COPIES and self._is_to_host(name, call):
            self._note("copies to the host")

    def event(self, event: HostEvent) -> None:
        """`torch.cuda.synchronize()` and other calls that wait."""
        if event.host_waits:
            self._note(event.name)

    def _note(self, what: str) -> None:
        self._waits[locate(3).location, what] += 1

    def _is_to_host(self, name: str, call: Call) -> bool:
        into, *others = [self._table.is_cuda(tensor) for tensor in call.inputs] or [False]
        if name == "copy_":
            return not into and any(others)
        return into and not call.on_cuda
