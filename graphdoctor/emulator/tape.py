"""The device's part of a run, with the very tensors it touched -> the same run again, in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.emulator.dispatch import Call
from graphdoctor.emulator.fallback import run_operator
from graphdoctor.emulator.operators import OperatorFacts, tensors_of, written_tensors
from graphdoctor.emulator.storages import StorageTable
from graphdoctor.model import Location

_COPIES = frozenset({"_to_copy", "copy_"})


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """One kernel launch to be: the operator, its frozen arguments, and the tensors it fills."""

    func: Any
    facts: OperatorFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fills: tuple[
        tuple[int | None, torch.Tensor], ...
    ]  # position in the result (None: the result itself)
    location: Location | None

    def call(self) -> Call:
        call = Call(self.func, self.facts, self.args, self.kwargs)
        call.on_cuda = True
        return call


class Tape:
    """Operators in the order they ran. `replay` runs them again on the same storages.

    Scalars are frozen as they were. A CPU tensor of no dimension is frozen too: CUDA kernels take
    its value as an argument, and only copies read host memory in a replay. Random operators draw
    afresh.
    """

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self.entries: list[TapeEntry] = []

    def add(self, call: Call, location: Location | None) -> None:
        """Keep a call that ran on the device, unless replaying it would do nothing (a view)."""
        if not call.on_cuda:
            return
        fills = self._fills(call)
        writes = bool(call.facts.written_args or call.facts.written_kwargs)
        if not fills and not writes:
            return
        by_value = call.facts.base_name not in _COPIES
        entry = TapeEntry(
            func=call.func,
            facts=call.facts,
            args=tuple(self._freeze(value, by_value=by_value) for value in call.args),
            kwargs={n: self._freeze(value, by_value=by_value) for n, value in call.kwargs.items()},
            fills=fills,
            location=location,
        )
        self.entries.append(entry)

    def _fills(self, call: Call) -> tuple[tuple[int | None, torch.Tensor], ...]:
        if call.facts.makes_garbage:
            return ()
        number = self._table.info
        read = {number(tensor).number for tensor in call.inputs}
        result = call.result
        if isinstance(result, torch.Tensor):
            return () if number(result).number in read else ((None, _alias(result)),)
        if not isinstance(result, (tuple, list)):
            return ()
        return tuple(
            (position, _alias(item))
            for position, item in enumerate(result)
            if isinstance(item, torch.Tensor) and number(item).number not in read
        )

    def _freeze(self, value: Any, *, by_value: bool) -> Any:
        if isinstance(value, torch.Tensor):
            alias = _alias(value)
            if by_value and value.dim() == 0 and not self._table.is_cuda(value):
                with torch._C._DisableTorchDispatch():
                    return alias.clone()
            return alias
        if isinstance(value, (list, tuple)) and any(True for _ in tensors_of(value)):
            return type(value)(self._freeze(item, by_value=by_value) for item in value)
        return value

    def replay(self) -> None:
        """Run every operator again; results go into the tensors of the first run."""
        # DisableTorchDispatch keeps the modes out: a replay is the device's work, not the host's.
        with (
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            for entry in self.entries:
                result = run_operator(entry.call())
                for position, tensor in entry.fills:
                    made = result if position is None else result[position]
                    if made is not tensor:
                        tensor.copy_(made)

    def last_writer(self, tensor: torch.Tensor) -> tuple[str, Location | None] | None:
        """The last operator that wrote into a tensor's storage, and its line."""
        wanted = self._table.info(tensor).number
        for entry in reversed(self.entries):
            written = [item for _, item in entry.fills]
            written.extend(written_tensors(entry.facts, entry.args, entry.kwargs))
            if any(self._table.info(item).number == wanted for item in written):
                return entry.facts.name, entry.location
        return None


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same memory.

    The tensor itself must not be kept: autograd looks at how many hold a gradient to decide whether
    it takes it or clones it, so that a tape that kept it would change what it records.
    """
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return tensor.detach()
