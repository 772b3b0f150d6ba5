"""Watch one iteration, and save what each region reads and writes.

Storages are numbered by first use within the region ("slots"): in every iteration the same, as long as
the region's tensors share memory in the same way. `pattern` is the sequence of slots, to tell that they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from graphdoctor.device.observe.operators import Call, tensors_of, written_tensors
from graphdoctor.device.observe.storages import (
    Geometry,
    StorageInfo,
    StorageTable,
)
from graphdoctor.device.observe.tape import Tape
from graphdoctor.graphs.generator import generator_state
from graphdoctor.target.frames import locate
from graphdoctor.target.state.saved_tensor import contents_now, copied_when_written
from graphdoctor.values.host_events import HostEvent, RngState
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration

_SEED = (
    "it takes the random state of a forward outside it, which only a captured forward can hand over"
)

_STATE_SET = "the random generator is set to another state within it"

_SEEDS_OF_ATTENTION = frozenset(
    {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"}
)

# Operator -> which of its results is memory that its own backward alone understands: parts are never written.
_WORKSPACES = {
    "mkldnn_rnn_layer": 3,
    "_cudnn_rnn": 3,
    "cudnn_batch_norm": 3,
    "_batch_norm_with_update": 3,
}

Part = tuple[int, Geometry]  # a slot and where in it
Writer = tuple[str, Location | None]


@dataclass
class RegionRun:
    """One run through a region.

    With a tape it keeps the operators, the memory that they read from outside and what they left behind, to be
    run again. Without one it copies: `before` has the contents of the former, `after` of the latter. Nobody writes
    into them: they may be a snapshot's, or the step's own until it writes there.
    """

    tape: Tape | None
    slots: dict[int, int] = field(default_factory=dict)  # storage number -> slot
    pattern: list[int] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    blank: set[int] = field(default_factory=set)  # slots that torch.empty made
    unwritten: set[Part] = field(default_factory=set)  # of these, what no operator wrote as it is
    written: dict[Part, StorageInfo] = field(default_factory=dict)
    writers: dict[int, Writer] = field(default_factory=dict)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # slot -> bytes of its storage
    before: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    after: dict[Part, torch.Tensor] = field(default_factory=dict)
    generator: torch.Tensor | None = None
    newest_before: int | None = None  # the number of the last storage that was there before it
    reason: str = ""  # why it cannot be compared

    @cached_property
    def references(self) -> Counter[int]:
        """How many tensors of the tape lie on each memory; it is finished."""
        return self.tape.references() if self.tape is not None else Counter()

    @property
    def written_slots(self) -> set[int]:
        """Also those that an operator outside wrote over since."""
        return set(self.writers)

    def slot(self, number: int) -> tuple[int, bool]:
        """The slot of a storage, and whether it is new."""
        slot = self.slots.get(number)
        new = slot is None
        if slot is None:
            slot = self.slots[number] = len(self.slots)
        self.pattern.append(slot)
        return slot, new


class RegionWatcher:
    """Follows one iteration and fills a `RegionRun` for each region; `spans` are their operators' indices.

    `repeated` turns false where the iteration does not repeat what was recorded.
    """

    def __init__(
        self,
        table: StorageTable,
        iteration: Iteration,
        spans: Sequence[tuple[int, ...]],
        runs: Sequence[RegionRun],
    ) -> None:
        self.repeated = True
        self._table = table
        self._ops = iteration.ops
        self._index = 0
        self._runs, self._spans = runs, spans
        self._run_of_op = {
            index: run for span, run in zip(spans, runs, strict=True) for index in span
        }
        self._last = {max(span) for span in spans}
        self._made_on_cpu: set[int] = set()  # by device operators: attention's seed and offset
        self._newest_before = table.newest

    def event(self, event: HostEvent) -> None:
        """What the host does is no part of a region, but for where random numbers are counted from."""
        if isinstance(event, RngState) and "set_rng_state" in event.name:
            for span, run in zip(self._spans, self._runs, strict=True):
                if min(span) < self._index <= max(span):
                    run.reason = _STATE_SET

    def before(self, call: Call) -> None:
        run = self._run_of_op.get(self._index)
        if run is None:
            return
        if run.newest_before is None:
            run.newest_before = self._table.newest
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if call.facts.is_random and run.generator is None:
                run.generator = generator_state()
            for tensor in call.inputs:
                self._read(run, tensor)

    def after(self, call: Call) -> None:
        index = self._index
        self._index += 1
        if index >= len(self._ops) or self._ops[index].name != call.facts.name:
            self.repeated = False
            return
        run = self._run_of_op.get(index)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if call.on_cuda and call.facts.is_random:
                for tensor in tensors_of(call.result):
                    if not self._table.is_cuda(tensor):
                        self._made_on_cpu.add(self._table.info(tensor).number)
            if run is None:
                self._overwritten(call)
                return
            self._wrote(run, call)
            if index in self._last:
                _finish(run, self._newest_before)

    def _read(self, run: RegionRun, tensor: torch.Tensor) -> None:
        number = self._table.info(tensor).number
        slot, new = run.slot(number)
        if new and number in self._made_on_cpu:
            run.reason = _SEED
        if not new or not self._table.is_cuda(tensor):
            return
        if tensor.layout != torch.strided or tensor.is_nested:
            run.reason = "it reads sparse or nested tensors, which are not compared"
            return
        storage = tensor.untyped_storage()
        run.sizes[slot] = storage.nbytes()
        if run.tape is not None:
            run.storages[slot] = storage
        else:
            # What the step itself has made is copied only when it writes there.
            run.before[slot] = (
                contents_now(storage)
                if self._table.info(tensor).number <= self._newest_before
                else copied_when_written(Geometry.all_of(storage).of(storage)).untyped_storage()
            )

    def _wrote(self, run: RegionRun, call: Call) -> None:
        location = locate().location
        writer = (call.facts.name, location)
        passed_by = set(map(id, _without_meaning(call)))
        for tensor in tensors_of(call.result):
            number = self._table.info(tensor).number
            is_from_before = run.newest_before is not None and number <= run.newest_before
            if is_from_before and number not in run.slots:
                self._read(run, tensor)  # `set_` got it as a storage, not as a tensor
            slot, new = run.slot(number)
            if id(tensor) not in passed_by and (new or slot in run.made):
                run.made.add(slot)
                if call.facts.makes_garbage:
                    run.blank.add(slot)
                self._note_write(run, slot, tensor, writer)
                if slot in run.blank:  # new memory, or a view of it
                    run.unwritten.add((slot, Geometry.of_tensor(tensor)))
        for tensor in written_tensors(call.facts, call.args, call.kwargs):
            slot, _ = run.slot(self._table.info(tensor).number)
            self._note_write(run, slot, tensor, writer)
            if slot in run.blank:
                run.unwritten.discard((slot, Geometry.of_tensor(tensor)))
        if run.tape is not None:
            run.tape.add(call, location)

    def _note_write(self, run: RegionRun, slot: int, tensor: torch.Tensor, writer: Writer) -> None:
        if not self._table.is_cuda(tensor):
            return
        if tensor.layout != torch.strided or tensor.is_nested:
            run.reason = "it creates sparse or nested tensors, which are not compared"
            return
        run.written[slot, Geometry.of_tensor(tensor)] = self._table.info(tensor)
        run.writers[slot] = writer
        run.sizes[slot] = tensor.untyped_storage().nbytes()

    def _overwritten(self, call: Call) -> None:
        """What an operator between a region's operators writes over is no result of the region."""
        numbers = {
            self._table.info(tensor).number
            for tensor in written_tensors(call.facts, call.args, call.kwargs)
        }
        if not numbers:
            return
        for run in self._runs:
            if not run.after:  # a finished run has its copies already
                for part in [p for p, info in run.written.items() if info.number in numbers]:
                    del run.written[part]


def _without_meaning(call: Call) -> Iterator[torch.Tensor]:
    """Results that need not be alike: where random numbers came from, which a graph keeps elsewhere, and workspaces."""
    schema = getattr(call.func, "_schema", None)
    if schema is not None and isinstance(call.result, tuple):
        workspace = _WORKSPACES.get(call.facts.base_name)
        for place, (returned, made) in enumerate(zip(schema.returns, call.result, strict=False)):
            is_passed_by = returned.name in _SEEDS_OF_ATTENTION or place == workspace
            if is_passed_by and isinstance(made, torch.Tensor):
                yield made


def _finish(run: RegionRun, newest_before: int) -> None:
    """Keep what the region wrote and somebody still holds; the rest was scratch."""
    for (slot, geometry), info in run.written.items():
        storage = info.storage()
        if storage is None:
            continue
        if run.tape is not None:
            run.storages[slot] = storage
            continue
        left = geometry.of(storage)
        is_old = info.number <= newest_before
        run.after[slot, geometry] = left.clone() if is_old else copied_when_written(left)
