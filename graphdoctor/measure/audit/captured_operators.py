"""Runs the operators of a capture once more, eagerly, on copies of what they write."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from graphdoctor.device.captured_kernels import CapturedKernel, CaptureNodes
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.fallback import run_operator
from graphdoctor.device.observe.operators import Call, Observer, each_in, replaced, written_tensors
from graphdoctor.device.observe.storages import Geometry, StorageInfo, StorageTable, is_plain
from graphdoctor.device.observe.tape import Tape, TapeEntry
from graphdoctor.device.real import reserved_memory
from graphdoctor.measure.audit.frozen_values import NumberOrigin, NumberOrigins
from graphdoctor.measure.audit.held_outputs import uses_no_memory
from graphdoctor.target.frames import locate
from graphdoctor.values.locations import Location

Skipped = Literal["", "random", "unseen"]


@dataclass(frozen=True, slots=True)
class Captured:
    """Memory that an operator was captured with, by number: it is not kept alive."""

    number: int
    geometry: Geometry


@dataclass(frozen=True, slots=True, eq=False)
class HostScalar:
    """A CPU tensor of no dimension, whose value a graph has frozen."""

    frozen: torch.Tensor
    memory: Captured


@dataclass(frozen=True, slots=True, eq=False)
class FrozenNumber:
    """A number that variables or attributes of the program had at capture."""

    value: int | float
    origins: tuple[NumberOrigin, ...]


Argument = Captured | HostScalar | FrozenNumber
_ARGUMENTS = (Captured, HostScalar, FrozenNumber)


class NotThere(Exception):
    """Memory that an operator needs is gone, or has another form now."""


@dataclass(frozen=True, slots=True)
class CapturedOperator:
    """An operator with an `Argument` for each tensor, and for each number of the program's variables."""

    entry: TapeEntry
    made: tuple[tuple[int | None, Captured], ...]  # results, by position
    written: tuple[Captured, ...]
    reads: frozenset[int]  # storages, by number
    skipped: Skipped

    @property
    def fills(self) -> Iterator[Captured]:
        """All memory whose contents it decides."""
        yield from (memory for _, memory in self.made)
        yield from self.written

    def arguments(self) -> Iterator[Argument]:
        """In order; an argument may come several times."""
        return each_in((self.entry.args, self.entry.kwargs), _ARGUMENTS)


class Extent(NamedTuple):
    """Where a storage was at capture; `size` in bytes."""

    address: int
    size: int
    device: torch.device


@dataclass(slots=True)
class Operators:
    """All operators of a capture, and the storages that they use, by number."""

    all: list[CapturedOperator] = field(default_factory=list)
    storages: dict[int, StorageInfo] = field(default_factory=dict)
    extents: dict[int, Extent] = field(default_factory=dict)
    on_cuda: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)  # in this capture
    with_inference: bool = False
    run: list[int] = field(default_factory=list)  # indices of those that eager can run
    random: set[int] = field(default_factory=set)  # storages that depend on random numbers
    filled: dict[Captured, int] = field(default_factory=dict)  # with the operator that was last

    def settle(self, foreign: set[int]) -> None:
        """Leave out what depends on operators that are not run, or on `foreign` memory of the graph's pool."""
        unknown, known = set(foreign), set[int]()
        for index, each in enumerate(self.all):
            fills = {memory.number for memory in each.fills}
            needed = each.reads - {memory.number for memory in each.written}
            lacks = needed & self.made - known  # somebody else filled it
            if each.skipped == "unseen" or lacks or each.reads & unknown:
                unknown |= fills
                continue
            self.run.append(index)
            known |= fills
            self.filled.update((memory, index) for memory in each.fills)
            if each.skipped == "random" or each.reads & self.random:
                self.random |= fills
        self.filled = {m: index for m, index in self.filled.items() if m.number not in unknown}

    def needed_by(self, last: int) -> list[int]:
        """The operators that are run and that one depends on, and it, in order."""
        needed, found = set[int](), list[int]()
        for index in reversed([each for each in self.run if each <= last]):
            each = self.all[index]
            fills = {memory.number for memory in each.fills}
            if index == last or not fills.isdisjoint(needed):
                needed |= each.reads | fills
                found.append(index)
        return found[::-1]


class OperatorRecorder(Observer):
    """Keeps a capture's operators, as a tape has them, and where their numbers came from."""

    def __init__(self, table: StorageTable, origins: NumberOrigins, *, one_generator: bool) -> None:
        self._table, self._origins = table, origins
        self._tape = Tape(table, one_generator=one_generator)
        self.operators = Operators()

    def after(self, call: Call) -> None:
        operators, tape, table = self.operators, self._tape, self._table
        made = tape.results(call)
        new = [call.result] if call.facts.makes_garbage else [tensor for _, tensor in made]
        operators.made.update(table.info(tensor).number for tensor in new)
        before = len(tape.entries)
        tape.add(call, locate().location)
        operators.with_inference = tape.has_inference
        if len(tape.entries) == before:
            return
        entry = tape.entries[-1]
        is_known = call.facts.is_aten and not call.facts.is_collective
        is_known = is_known and all(map(is_plain, (*call.inputs, *(each for _, each in made))))
        skipped: Skipped = "random" if call.facts.is_random else ""
        if is_known:
            numbers: dict[int | float, Any] = {}
            args = self._referred(call.args, entry.args, numbers)
            kwargs = {
                n: self._referred(v, entry.kwargs[n], numbers) for n, v in call.kwargs.items()
            }
            entry = replace(entry, args=args, kwargs=kwargs, fills=())
        else:
            entry, skipped = replace(entry, args=(), kwargs={}, fills=()), "unseen"
        tape.entries[-1] = entry  # as the tape had it, it keeps memory alive
        written = written_tensors(call.facts, call.args, call.kwargs)
        operators.all.append(
            CapturedOperator(
                entry=entry,
                made=tuple((position, self._captured(tensor)) for position, tensor in made),
                written=tuple(self._captured(tensor) for tensor in written),
                reads=frozenset(
                    () if uses_no_memory(call.facts) else (info.number for info in call.infos)
                ),
                skipped=skipped,
            )
        )

    def _referred(self, value: Any, kept: Any, numbers: dict[int | float, Any]) -> Any:
        """An argument by reference; `kept` is what the tape has of it."""
        if isinstance(value, torch.Tensor):
            memory = self._captured(value)
            is_host = not value.dim() and not self._table.is_cuda(value)
            if is_host and self._table.info(kept).number != memory.number:
                return HostScalar(kept, memory)  # the tape has copied it
            return memory
        if type(value) in (int, float):
            if value not in numbers:
                origins = tuple(origin for _, origin in self._origins.of((value,)))
                numbers[value] = FrozenNumber(value, origins) if origins else value
            return numbers[value]
        if type(value) in (list, tuple):
            return type(value)(
                self._referred(item, of, numbers) for item, of in zip(value, kept, strict=True)
            )
        return value

    def _captured(self, tensor: torch.Tensor) -> Captured:
        info = self._table.info(tensor)
        if not is_plain(tensor):  # its operator is not run
            return Captured(info.number, Geometry(0, (0,), (1,), tensor.dtype))
        if info.number not in self.operators.storages:
            with torch._C.DisableTorchFunction():
                storage = tensor.untyped_storage()
                self.operators.storages[info.number] = info
                self.operators.extents[info.number] = Extent(
                    storage.data_ptr(), storage.nbytes(), storage.device
                )
            if self._table.is_cuda(tensor):
                self.operators.on_cuda.add(info.number)
        return Captured(info.number, Geometry.of_tensor(tensor))


Place = tuple[torch.UntypedStorage, int]  # with how many bytes further in it is than at capture


class AsCaptured:
    """The arguments as the graph has them."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators
        self._freed: dict[int, torch.UntypedStorage] = {}

    def place(self, memory: Captured) -> Place:
        """Where the memory from outside the capture is. Raises NotThere."""
        extent = self._operators.extents[memory.number]
        storage = self._freed.get(memory.number, self._operators.storages[memory.number].storage())
        if storage is None and extent.device.type == "cuda":
            storage = reserved_memory(*extent)
            if storage is not None:
                self._freed[memory.number] = storage
        if storage is None or storage.nbytes() < extent.size:
            raise NotThere
        return storage, 0

    def value(self, argument: HostScalar | FrozenNumber) -> Any:
        return argument.frozen if isinstance(argument, HostScalar) else argument.value


class EagerRun:
    """Operators one by one; `running_again` has to be entered.

    What they write from outside the capture is written in copies, of the contents that `before` has by the
    storage's address. None: it is written where it is. `device` is the emulated one, None for CUDA.
    """

    def __init__(
        self, operators: Operators, arguments: AsCaptured, table: StorageTable,
        device: EmulatedDevice | None, before: Mapping[int, torch.UntypedStorage] | None,
    ) -> None:  # fmt: skip
        self._operators, self._arguments, self._before = operators, arguments, before
        self._table, self._is_emulated = table, device is not None
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._made: dict[int, Place] = {}
        # Of this run, until their memory is copied.
        self._tensors: dict[Captured, torch.Tensor] = {}

    def run(self, indices: Iterable[int]) -> None:
        """Run operators in order. Raises NotThere where an argument is gone."""
        for index in indices:
            self.step(index)

    def step(self, index: int) -> None:
        """Run one operator. Raises NotThere where an argument is gone."""
        each = self._operators.all[index]
        written = {memory.number for memory in each.written}

        def value(argument: Argument) -> Any:
            if not isinstance(argument, Captured):
                return self._arguments.value(argument)
            if not each.reads:  # only its form counts
                shape, stride, dtype = argument.geometry[1:]
                device = self._operators.extents[argument.number].device
                return torch.empty_strided(shape, stride, dtype=dtype, device=device)
            return self.tensor(argument, writes=argument.number in written)

        entry = each.entry
        args = replaced(entry.args, _ARGUMENTS, value)
        kwargs = replaced(entry.kwargs, _ARGUMENTS, value)
        if torch.is_grad_enabled() is not entry.grad_enabled:
            torch._C._set_grad_enabled(entry.grad_enabled)
        if self._is_emulated:
            call = Call(entry.func, entry.facts, args, kwargs)
            call.on_cuda = True
            result = run_operator(call)
        else:
            result = entry.func(*args, **kwargs)
        for position, memory in each.made:
            tensor, geometry = result if position is None else result[position], memory.geometry
            if tensor.shape != geometry.shape or tensor.dtype != geometry.dtype:
                raise NotThere
            if tensor.stride() != geometry.stride:
                tensor = tensor.new_empty_strided(geometry.shape, geometry.stride).copy_(tensor)
            moved = int(tensor.storage_offset()) - geometry.offset
            storage = self._on_device(tensor.untyped_storage(), memory)
            self._made[memory.number] = storage, moved * geometry.dtype.itemsize
            self._tensors[memory] = tensor

    def tensor(self, memory: Captured, *, writes: bool = False) -> torch.Tensor:
        """It in this run."""
        found = self._tensors.get(memory)
        if found is None or writes:
            storage, moved = self._place(memory, writes=writes)
            if found is None or found.untyped_storage()._cdata != storage._cdata:
                found = memory.geometry.of(storage, moved=moved // memory.geometry.dtype.itemsize)
                self._tensors[memory] = found
        return found

    def _place(self, memory: Captured, *, writes: bool) -> Place:
        if memory.number in self._operators.made:
            place = self._made.get(memory.number)
            if place is None:  # empty so far
                _, size, device = self._operators.extents[memory.number]
                empty = torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
                place = self._made[memory.number] = self._on_device(empty, memory), 0
            return place
        storage, moved = self._arguments.place(memory)
        if self._before is None:
            return storage, moved
        key = storage._cdata
        if writes and key not in self._copies:
            copy = self._before.get(key, storage).clone()
            self._copies[key] = self._on_device(copy, memory)
            self._tensors.clear()  # some of them are still on what was copied
        return self._copies.get(key, self._before.get(key, storage)), moved

    def _on_device(self, storage: torch.UntypedStorage, memory: Captured) -> torch.UntypedStorage:
        """New memory, which the emulated device has to know of."""
        if self._is_emulated and memory.number in self._operators.on_cuda:
            self._table.put_storage_on_cuda(storage)
        return storage


class KernelUse(NamedTuple):
    """A kernel, and the line of the operator that launched it, if one did."""

    kernel: CapturedKernel
    location: Location | None


class UndispatchedKernels(Observer):
    """During one capture, separates kernels of torch's own operators from all others.

    An operator of torch's own uses its arguments, which torch shows. Operators of libraries may use more: vLLM's
    attention finds its cache by the name of a layer.
    """

    def __init__(self, nodes: CaptureNodes) -> None:
        self._nodes = nodes
        self._first = 0
        self._torchs: set[int] = set()  # nodes, by position
        self._lines: dict[int, Location | None] = {}

    def before(self, call: Call) -> None:
        self._first = self._nodes.count()

    def after(self, call: Call) -> None:
        launched = range(self._first, self._nodes.count())
        if call.facts.is_aten or call.facts.is_collective:
            self._torchs.update(launched)
        elif launched:
            self._lines.update(dict.fromkeys(launched, locate().location))

    def all(self) -> Iterator[KernelUse]:
        """The other kernels so far; the capture has to be under way."""
        others = [each for each in range(self._nodes.count()) if each not in self._torchs]
        for kernel in self._nodes.kernels(others):
            yield KernelUse(kernel, self._lines.get(kernel.node))


def used_storages(
    uses: Iterable[KernelUse], storages: Iterable[tuple[StorageInfo, torch.UntypedStorage]]
) -> Iterator[tuple[KernelUse, StorageInfo, torch.UntypedStorage]]:
    """The storages that an address in a kernel's parameters is in, each with its first kernel."""
    by_address = sorted(
        ((storage.data_ptr(), info.number), info, storage) for info, storage in storages
    )
    extents = [range(at, at + storage.nbytes()) for (at, _), _, storage in by_address]
    found: set[int] = set()
    for use in uses:
        for word in use.kernel.words:
            index = bisect_right(extents, word, key=lambda extent: extent.start) - 1
            if index >= 0 and word in extents[index] and index not in found:
                found.add(index)
                yield use, *by_address[index][1:]
