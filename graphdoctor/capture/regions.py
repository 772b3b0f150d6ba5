"""A plan and a session on the emulated device -> for each region, whether its replay computes what eager does.

The first iteration that runs a region is kept as a tape. In every later iteration that runs it, the memory
that the region reads is copied before its operators run, and the memory that it wrote afterwards; then the
tape gets the former, is replayed, and must produce the latter, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from graphdoctor.capture.compare import gap_between, has_same_bits
from graphdoctor.emulator.dispatch import Call
from graphdoctor.emulator.operators import tensors_of, written_tensors
from graphdoctor.emulator.storages import StorageInfo, StorageTable
from graphdoctor.emulator.tape import Tape
from graphdoctor.frames import locate
from graphdoctor.model import CaptureOutcome, Difference, Location, Verification
from graphdoctor.partition import Plan, PlannedRegion
from graphdoctor.record.session import Session
from graphdoctor.recording import Iteration

_METHOD = "bitwise"


def verify_regions(
    session: Session, captured: Sequence[Iteration], plan: Plan
) -> tuple[CaptureOutcome, ...]:
    """Capture each region of the plan and replay it on the other iterations' values.

    `captured` are the iterations that the plan was made from; they are run again, in the same order
    and from the same state, and must repeat themselves operator by operator.
    """
    trials = {planned.region.name: _Trial(planned) for planned in plan.regions}
    with session.from_the_start(capturing=True):
        for iteration in captured:
            watcher = _Watcher(session.device.table, iteration, list(trials.values()))
            inputs = session.inputs(iteration.index)
            with session.device.observed_by(watcher):
                session.call(inputs)
            for trial, run in watcher.runs():
                trial.add(run, repeated=watcher.repeated)
    return tuple(trial.outcome(_fallback(trial, captured)) for trial in trials.values())


class Geometry(NamedTuple):
    """Which part of a storage a tensor is: the rest of it may hold anything."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of_tensor(tensor: torch.Tensor) -> Geometry:
        return Geometry(
            tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
        )

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, self.offset, self.shape, self.stride)


@dataclass
class _Run:
    """One iteration's run through a region: what it read and wrote, in order of first use.

    Storages are numbered by first use within the region ("slots"), which is the same in
    every iteration as long as the region's tensors alias each other in the same way.
    """

    index: int
    slots: dict[int, int] = field(default_factory=dict)  # storage number -> slot
    pattern: list[int] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    written: dict[tuple[int, Geometry], StorageInfo] = field(default_factory=dict)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # kept for the tape
    before: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    after: dict[tuple[int, Geometry], torch.Tensor] = field(default_factory=dict)
    writers: dict[int, tuple[str, Location | None]] = field(default_factory=dict)
    generator: torch.Tensor | None = None
    tape: Tape | None = None


class _Trial:
    """One region's tape and what its replays showed."""

    def __init__(self, planned: PlannedRegion) -> None:
        self.planned = planned
        self.first: _Run | None = None
        self.replays = 0
        self.tensors = 0
        self.trouble = ""
        self.differences: list[Difference] = []

    def add(self, run: _Run, *, repeated: bool) -> None:
        """Take the first run as the tape, and check it against every later one."""
        if not repeated:
            self.trouble = "the step did not repeat itself when it was run again"
        elif self.first is None:
            self.first = run
        elif run.pattern != self.first.pattern:
            self.trouble = "its tensors share memory in another way in other iterations"
        else:
            self._replay(run)

    def _replay(self, run: _Run) -> None:
        first = self.first
        assert first is not None and first.tape is not None
        kept = {slot: storage.clone() for slot, storage in first.storages.items()}
        generator = torch.get_rng_state()
        try:
            # Below the emulation: contents are compared, wherever they are taken to lie.
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                for slot, contents in run.before.items():
                    first.storages[slot].copy_(contents)
                if run.generator is not None:
                    torch.set_rng_state(run.generator)
                first.tape.replay()
                self.replays += 1
                self._compare(first, run)
        finally:
            torch.set_rng_state(generator)
            for slot, contents in kept.items():
                first.storages[slot].copy_(contents)

    def _compare(self, first: _Run, run: _Run) -> None:
        compared = 0
        for (slot, geometry), wanted in run.after.items():
            storage = first.storages.get(slot)
            if storage is None:
                continue
            compared += 1
            found = geometry.of(storage).clone()
            if not has_same_bits(found, wanted):
                self.differences.append(self._difference(first.writers[slot], wanted, found))
                break
        self.tensors = max(self.tensors, compared)

    def _difference(
        self, writer: tuple[str, Location | None], wanted: torch.Tensor, found: torch.Tensor
    ) -> Difference:
        operator, location = writer
        gap = gap_between("", wanted, found)
        return Difference(
            tensor=f"the result of {operator}",
            replay=self.replays,
            max_abs=gap.max_abs if gap is not None else 0.0,
            max_rel=gap.max_rel if gap is not None else 0.0,
            operator=operator,
            location=location,
            detail=gap.detail if gap is not None else "",
        )

    def outcome(self, fallback: str | None) -> CaptureOutcome:
        region = self.planned.region
        return CaptureOutcome(
            scope=f"region {region.name}",
            status="captured",
            operators=region.operators,
            verification=self._verification(fallback),
        )

    def _verification(self, fallback: str | None) -> Verification:
        status: Any = "verified"
        reason = ""
        if self.differences:
            status = "wrong"
            reason = f"replay {self.differences[0].replay} computed something else than eager"
        elif self.trouble or fallback:
            status, reason = "not-verified", self.trouble or fallback or ""
        elif self.replays == 0:
            status, reason = "not-verified", "it ran in one of the recorded iterations only"
        elif self.tensors == 0:
            status, reason = "not-verified", "nothing that it writes is there at its end to compare"
        return Verification(
            status=status,
            replays=self.replays,
            tensors=self.tensors,
            method=_METHOD,
            reason=reason,
            differences=tuple(self.differences),
        )


class _Watcher:
    """Follows one iteration, and copies what each region reads and writes."""

    def __init__(self, table: StorageTable, iteration: Iteration, trials: list[_Trial]) -> None:
        self.repeated = True
        self._table = table
        self._ops = iteration.ops
        self._index = 0
        self._runs: dict[int, tuple[_Trial, _Run]] = {}
        self._of_op: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for number, trial in enumerate(trials):
            span = trial.planned.ops_in(iteration.index)
            if span:
                run = _Run(iteration.index, tape=Tape(table) if trial.first is None else None)
                self._runs[number] = (trial, run)
                self._of_op.update(dict.fromkeys(span, number))
                self._last[number] = max(span)

    def runs(self) -> Iterator[tuple[_Trial, _Run]]:
        return iter(self._runs.values())

    def event(self, kind: str, name: str, detail: str) -> None:
        """What the host does is no part of a region."""

    def before(self, call: Call) -> None:
        number = self._of_op.get(self._index)
        if number is None:
            return
        _, run = self._runs[number]
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if call.facts.is_random and run.generator is None:
                run.generator = torch.get_rng_state()
            for tensor in call.inputs:
                self._read(run, tensor)

    def after(self, call: Call) -> None:
        index = self._index
        self._index += 1
        if index >= len(self._ops) or self._ops[index].name != call.facts.name:
            self.repeated = False
            return
        number = self._of_op.get(index)
        if number is None:
            self._overwritten(call)
            return
        _, run = self._runs[number]
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            self._wrote(run, call)
            if index == self._last[number]:
                self._finish(run)

    def _overwritten(self, call: Call) -> None:
        """What an operator between a region's operators writes over is no result of the region any more."""
        numbers = {
            self._table.info(tensor).number
            for tensor in written_tensors(call.facts, call.args, call.kwargs)
        }
        if not numbers:
            return
        for _, run in self._runs.values():
            if not run.after:  # not finished yet: what is copied at the end must be its own
                gone = [key for key, info in run.written.items() if info.number in numbers]
                for key in gone:
                    del run.written[key]

    def _slot(self, run: _Run, tensor: torch.Tensor) -> tuple[int, bool]:
        number = self._table.info(tensor).number
        slot = run.slots.get(number)
        new = slot is None
        if slot is None:
            slot = run.slots[number] = len(run.slots)
        run.pattern.append(slot)
        return slot, new

    def _read(self, run: _Run, tensor: torch.Tensor) -> None:
        slot, new = self._slot(run, tensor)
        if not new or not self._table.is_cuda(tensor):
            return
        storage = tensor.untyped_storage()
        if run.tape is not None:
            run.storages[slot] = storage
        else:
            run.before[slot] = storage.clone()

    def _wrote(self, run: _Run, call: Call) -> None:
        location = locate().location
        for tensor in tensors_of(call.result):
            slot, new = self._slot(run, tensor)
            if new or slot in run.made:
                run.made.add(slot)
                self._note_write(run, slot, tensor, (call.facts.name, location))
        for tensor in written_tensors(call.facts, call.args, call.kwargs):
            slot, _ = self._slot(run, tensor)
            self._note_write(run, slot, tensor, (call.facts.name, location))
        if run.tape is not None:
            run.tape.add(call, location)

    def _note_write(
        self, run: _Run, slot: int, tensor: torch.Tensor, writer: tuple[str, Location | None]
    ) -> None:
        info = self._table.info(tensor)
        if not info.cuda:
            return
        run.written[slot, Geometry.of_tensor(tensor)] = info
        run.writers[slot] = writer
        if run.tape is not None:
            run.storages[slot] = tensor.untyped_storage()

    def _finish(self, run: _Run) -> None:
        """Copy what the region wrote and somebody still holds; the rest was scratch."""
        if run.tape is not None:
            return
        for (slot, geometry), info in run.written.items():
            storage = info.storage()
            if storage is not None:
                run.after[slot, geometry] = geometry.of(storage).clone()


def _fallback(trial: _Trial, captured: Sequence[Iteration]) -> str | None:
    """Why the emulated result of a region may not be a GPU's."""
    for iteration in captured:
        for index in trial.planned.ops_in(iteration.index):
            doubt = iteration.ops[index].fallback
            if doubt is not None:
                return doubt
    return None
