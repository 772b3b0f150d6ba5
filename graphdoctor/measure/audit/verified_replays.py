"""Compares replays with what their operators compute eagerly, and finds the first that differs."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.storages import Geometry, StorageTable, is_plain
from graphdoctor.device.observe.tape import running_again
from graphdoctor.device.real import own_memory, private_pools
from graphdoctor.graphs.compare import Gap, gap_between, has_same_bits, have_same_bits, is_as_far
from graphdoctor.graphs.generator import generator_state, set_generator_state
from graphdoctor.measure.audit.blame import BlamedOperator, Operand
from graphdoctor.measure.audit.captured_operators import (
    Argument,
    AsCaptured,
    Captured,
    EagerRun,
    FrozenNumber,
    HostScalar,
    NotThere,
    Operators,
    Place,
)
from graphdoctor.measure.audit.places import Holder, is_modules, users_frames
from graphdoctor.measure.audit.places import Place as Origin
from graphdoctor.measure.watch.sampling import DutyCycle
from graphdoctor.target.frames import locate
from graphdoctor.values.audited import OperatorInput, Spacing, Verified, WrongReplay
from graphdoctor.values.locations import Location

_SHARE = 0.03  # of the program's time, at most, if the spacing follows the cost
_MOST_BLAMED = 64  # operators, the last ones before the wrong one


class Origins:
    """The places that held memory at capture, by the number of its storage."""

    def __init__(self, holders: Mapping[int, Sequence[Holder]]) -> None:
        self._held = {
            number: [
                (each.geometry, each.place)
                for each in found
                if each.place is not None and each.geometry is not None
            ]
            for number, found in holders.items()
        }
        self._known: dict[Captured, list[tuple[Geometry, Origin]]] = {}

    def of(self, memory: Captured) -> list[tuple[Geometry, Origin]]:
        """Where modules held it, only they count: an optimizer keeps the parameters that it was made with."""
        found = self._known.get(memory)
        if found is None:
            all_held = self._held.get(memory.number, ())
            held = [each for each in all_held if _covers(each[0], memory.geometry)]
            found = self._known[memory] = [each for each in held if is_modules(each[1])] or held
        return found


@dataclass(slots=True)
class _Graph:
    operators: Operators
    origins: Origins
    captured_at: Location | None
    replays: int = 0
    reported: set[int] = field(default_factory=set)  # by the operator that was the first to differ


class AsNow(AsCaptured):
    """The arguments as the program's variables and attributes have them now."""

    def __init__(
        self, operators: Operators, origins: Origins, table: StorageTable,
        frames: list[FrameType],
    ) -> None:  # fmt: skip
        super().__init__(operators)
        self._origins, self._table, self._frames = origins, table, frames
        self._places: dict[Captured, Place] = {}
        self.changed: dict[Captured, str] = {}  # with the name of what holds other memory now

    def place(self, memory: Captured) -> Place:
        found = self._places.get(memory)
        if found is None:
            found = self._places[memory] = self._find(memory)
        return found

    def find_all(self) -> None:
        """Look at all memory from outside. Raises NotThere."""
        for each in self._operators.all:
            for argument in each.arguments():
                if isinstance(argument, HostScalar):
                    self.place(argument.memory)
                elif isinstance(argument, Captured) and argument.number not in self._operators.made:
                    self.place(argument)

    def _find(self, memory: Captured) -> Place:
        """It has moved only if none of the places that held it holds it now."""
        moved: tuple[str, Geometry, torch.Tensor] | None = None
        for base, origin in self._origins.of(memory):
            now = origin.read(self._frames)
            if not isinstance(now, torch.Tensor) or not is_plain(now):
                continue
            if self._table.info(now).number == memory.number:
                return super().place(memory)
            form = Geometry.of_tensor(now)._replace(offset=base.offset)
            is_alike = self._table.is_cuda(now) is (memory.number in self._operators.on_cuda)
            if form == base and is_alike:  # else it is something else altogether
                moved = moved or (origin.text, base, now)
        if moved is None:
            return super().place(memory)
        name, base, now = moved
        self.changed[memory] = name
        with torch._C.DisableTorchFunction():
            further = int(now.storage_offset()) - base.offset
            return now.untyped_storage(), further * base.dtype.itemsize

    def value(self, argument: HostScalar | FrozenNumber) -> Any:
        if isinstance(argument, HostScalar):
            storage, moved = self.place(argument.memory)
            geometry = argument.memory.geometry
            return geometry.of(storage, moved=moved // geometry.dtype.itemsize)
        values = [each.now(self._frames) for each in argument.origins]
        known = [value for value in values if value is not None]
        return argument.value if not known or argument.value in known else known[0]

    def described(self, argument: Argument) -> OperatorInput:
        """What the program calls it, and what it is now if that is something else."""
        if isinstance(argument, FrozenNumber):
            now = self.value(argument)
            name = argument.origins[0].name
            return OperatorInput(
                name, f"{argument.value}", "" if now == argument.value else f"{now}"
            )
        memory = argument.memory if isinstance(argument, HostScalar) else argument
        base, name = memory.geometry, self.changed.get(memory, "")
        if held := self._origins.of(memory):
            base, name = held[0][0], name or held[0][1].text
        if isinstance(argument, HostScalar):
            now = self.value(argument)
            if not has_same_bits(argument.frozen, now):
                return OperatorInput(name, f"{argument.frozen.item()}", f"{now.item()}")
        text = f"{str(base.dtype).removeprefix('torch.')}{list(base.shape)}"
        return OperatorInput(name, text, "other memory" if memory in self.changed else "")


def _covers(base: Geometry, part: Geometry) -> bool:
    """Whether a part of the same storage is one of this tensor, by the bytes that both reach over."""
    (start, end), (begins, ends) = _span(base), _span(part)
    return start <= begins and ends <= end


def _span(geometry: Geometry) -> tuple[int, int]:
    steps = (max(n - 1, 0) * step for n, step in zip(geometry.shape, geometry.stride, strict=True))
    size = geometry.dtype.itemsize
    return geometry.offset * size, (geometry.offset + sum(steps) + 1) * size


class ReplayVerifier:
    """Runs captured operators eagerly before each `every`th replay of a graph, the first among these.

    "auto": before the first one, and then as often as comparing takes no more than 3 % of the time.
    `instead`: every replay is that eager run, and nothing is compared.
    """

    def __init__(
        self, table: StorageTable, device: EmulatedDevice | None, *, every: Spacing,
        instead: bool = False, keeps_inputs: bool = False,
    ) -> None:  # fmt: skip
        self._keeps_inputs = keeps_inputs
        self._table, self._device, self._every, self._instead = table, device, every, instead
        self._graphs: WeakKeyDictionary[Any, _Graph] = WeakKeyDictionary()
        self._made: set[int] = set()  # by number, in all captures
        self._duty = DutyCycle(time.perf_counter(), _SHARE)
        self.found: list[WrongReplay] = []
        self.blamed: list[tuple[BlamedOperator, ...]] = []  # of the same replays, if `keeps_inputs`
        self._counts: dict[str, int] = defaultdict(int)

    @property
    def counts(self) -> Verified:
        """What was compared so far, and what was not."""
        return Verified(every=self._every, **self._counts)

    def keep(
        self, graph: Any, operators: Operators, holders: Mapping[int, Sequence[Holder]],
        location: Location | None,
    ) -> None:  # fmt: skip
        """A capture has ended."""
        operators.settle(self._foreign(operators))
        used = operators.storages.keys() - operators.made
        origins = Origins({number: holders[number] for number in used if number in holders})
        self._graphs[graph] = _Graph(operators, origins, location)
        random = sum(each.skipped == "random" for each in operators.all)
        self._counts["operators"] += len(operators.run) - random
        self._counts["random"] += random
        self._counts["unseen"] += len(operators.all) - len(operators.run)

    def verified(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """What to call in the place of graphs' `replay`."""

        @functools.wraps(method)
        def replay(graph: Any) -> Any:
            known = self._graphs.get(graph)
            if known is None:
                return method(graph)
            known.replays += 1
            if self._instead:
                return self._run_instead(known) or method(graph)
            if not known.operators.run or not self._is_due(known):
                return method(graph)
            begun_s = time.perf_counter()
            trial = self._prepare(known)
            done = method(graph)
            if trial is not None:
                self._judge(known, trial)
            now_s = time.perf_counter()
            self._duty.pay(now_s, now_s - begun_s)
            return done

        return replay

    def _is_due(self, known: _Graph) -> bool:
        if known.replays == 1:
            return True
        if self._every == "auto":
            return time.perf_counter() >= self._duty.due_s
        return (known.replays - 1) % self._every == 0

    def _foreign(self, operators: Operators) -> set[int]:
        """Memory of graphs' pools that no operator was seen to make: kernels that torch does not dispatch did."""
        self._made |= operators.made
        if self._device is not None:
            return set()
        pools = private_pools()
        return {
            number
            for number, info in operators.storages.items()
            if number not in self._made and (storage := info.storage()) is not None
            and any(storage.data_ptr() in pool for pool in pools)
        }  # fmt: skip

    @contextmanager
    def _running(self, known: _Graph) -> Iterator[None]:
        """Run operators of a graph here.

        On a GPU they get memory of their own: elsewhere the allocator could give them what the program has freed
        and the graph still reads.
        """
        with (
            own_memory() if self._device is None else nullcontext(),
            running_again(with_inference=known.operators.with_inference),
        ):
            yield

    def _prepare(self, known: _Graph) -> _Trial | None:
        """Eager, on copies, before the replay; None where it cannot run."""
        now = AsNow(known.operators, known.origins, self._table, users_frames())
        try:
            with self._running(known):
                return _Trial(known.operators, now, self._table, self._device)
        except NotThere:
            self._counts["gone"] += 1
        except Exception:  # whatever operators raise: the program goes on
            self._counts["failed"] += 1
        return None

    def _judge(self, known: _Graph, trial: _Trial) -> None:
        self._counts["replays"] += 1
        try:
            with self._running(known):
                differs = trial.judged(exact=self._device is not None)
                if differs is None or differs.index in known.reported:
                    return
                if differs.index is None:
                    self._counts["unexplained"] += 1
                    return
                known.reported.add(differs.index)
                if self._keeps_inputs:
                    self.blamed.append(trial.inputs_of(differs.index))
                inputs = tuple(
                    map(trial.now.described, known.operators.all[differs.index].arguments())
                )
        except Exception:  # whatever operators raise: the program goes on
            self._counts["failed"] += 1
            return
        entry, gap = known.operators.all[differs.index].entry, differs.gap
        self.found.append(
            WrongReplay(
                operator=entry.facts.name,
                used_at=entry.location,
                inputs=inputs,
                max_abs=gap.max_abs,
                max_rel=gap.max_rel,
                detail=gap.detail,
                frozen=differs.frozen,
                repeats=differs.repeats,
                captured_at=known.captured_at,
                replayed_at=locate().location,
                replay=known.replays,
            )
        )

    def _run_instead(self, known: _Graph) -> bool:
        """Whether eager could stand in for the replay."""
        operators = known.operators
        if len(operators.run) < len(operators.all):
            return False
        now = AsNow(operators, known.origins, self._table, users_frames())
        with self._running(known):
            try:
                now.find_all()
            except NotThere:
                self._counts["gone"] += 1
                return False
            run = EagerRun(operators, now, self._table, self._device, None)
            run.run(operators.run)
            for memory in operators.filled:
                storage = operators.storages[memory.number].storage()
                if memory.number in operators.made and storage is not None:
                    memory.geometry.of(storage).copy_(run.tensor(memory))
        self._counts["replays"] += 1
        return True


@dataclass(frozen=True, slots=True)
class _Differs:
    """`index`: the first operator that differs, None if a kernel that was not seen may be the reason."""

    index: int | None
    gap: Gap
    frozen: bool
    repeats: bool


class _Trial:
    """A replay and the eager run before it."""

    def __init__(
        self, operators: Operators, now: AsNow, table: StorageTable, device: EmulatedDevice | None
    ) -> None:
        self.now, self._table, self._device = now, table, device
        self._operators = operators
        self._then = AsCaptured(operators)
        self._before: dict[int, torch.UntypedStorage] = {}
        for memory in operators.filled:
            if memory.number not in operators.made:
                for arguments in (self._then, now):
                    storage, _ = arguments.place(memory)
                    if storage._cdata not in self._before:
                        self._before[storage._cdata] = storage.clone()
        self._generator = generator_state() if operators.random else None
        self._run = self._eager(now)
        self._run.run(operators.run)
        for memory in now.changed:
            # The replay writes over a result of the capture that the program now uses as an input.
            storage, _ = now.place(memory)
            info = table.info_of(storage)
            if info is not None and info.number in operators.made:
                self._before.setdefault(storage._cdata, storage.clone())
        self._rewind()

    def _eager(self, arguments: AsCaptured) -> EagerRun:
        return EagerRun(self._operators, arguments, self._table, self._device, self._before)

    def _rewind(self) -> None:
        if self._generator is not None:
            set_generator_state(self._generator)

    def judged(self, *, exact: bool) -> _Differs | None:
        """After the replay: None where it left what eager did."""
        filled = self._operators.filled
        pairs = {
            memory: (self._run.tensor(memory), actual)
            for memory in filled
            if (actual := self._actual(memory, self.now)) is not None
        }
        same = have_same_bits(list(pairs.values()))
        wrong = [memory for memory, is_same in zip(pairs, same, strict=True) if not is_same]
        if not wrong:
            return None
        drawn = generator_state() if self._generator is not None else None
        try:
            return self._explained({memory: pairs[memory] for memory in wrong}, exact=exact)
        finally:
            if drawn is not None:
                set_generator_state(drawn)

    def _actual(self, memory: Captured, arguments: AsCaptured) -> torch.Tensor | None:
        """What is there now; None where nobody holds a result of the capture."""
        if memory.number not in self._operators.made:
            storage, moved = arguments.place(memory)
            return memory.geometry.of(storage, moved=moved // memory.geometry.dtype.itemsize)
        result = self._operators.storages[memory.number].storage()
        return memory.geometry.of(result) if result is not None else None

    def _explained(
        self, pairs: dict[Captured, tuple[torch.Tensor, torch.Tensor]], *, exact: bool
    ) -> _Differs | None:
        again, frozen = self._eager(self.now), self._eager(self._then)
        first = self._side_by_side(again, frozen, exact=exact)
        gaps: dict[Captured, Gap] = {}
        drifts = 0
        for memory, (expected, actual) in pairs.items():
            drift = gap_between("", again.tensor(memory), expected)
            drifts += drift is not None
            gap = _beyond(expected, actual, exact=exact, drift=drift)
            if gap is not None:
                gaps[memory] = gap
        if not gaps:
            return None
        for memory in gaps:
            left = self._actual(memory, self._then)
            if left is None:
                continue
            if _beyond(frozen.tensor(memory), left, exact=exact) is None:
                # Without a first one, only the memory that is written is another.
                index, gap = first or (self._operators.filled[memory], gaps[memory])
                return _Differs(index, gap, frozen=True, repeats=not drifts)
        sure = {m: gap for m, gap in gaps.items() if m.number not in self._operators.random}
        if not exact or not sure:
            return _Differs(None, next(iter(gaps.values())), frozen=False, repeats=not drifts)
        memory = min(sure, key=self._operators.filled.__getitem__)
        index = self._operators.filled[memory]
        return _Differs(index, sure[memory], frozen=False, repeats=not drifts)

    def inputs_of(self, last: int) -> tuple[BlamedOperator, ...]:
        """The operators that one depends on, and it, with copies of what they get."""
        now, then = self._eager(self.now), self._eager(self._then)
        wanted = self._operators.needed_by(last)[-_MOST_BLAMED:]
        found: list[BlamedOperator] = []
        for index in self._operators.run:
            if index in wanted:
                each = self._operators.all[index]
                operands = {arg: self._operand(arg, now, then) for arg in each.arguments()}
                found.append(BlamedOperator(each, operands))
            if index == last:
                break
            now.step(index)
            then.step(index)
        return tuple(found)

    def _operand(self, argument: Argument, now: EagerRun, then: EagerRun) -> Operand:
        name = self.now.described(argument).name
        if isinstance(argument, Captured):
            values = then.tensor(argument).clone(), now.tensor(argument).clone()
            return Operand(*values, name, argument in self.now.changed)
        before, after = self._then.value(argument), self.now.value(argument)
        if isinstance(argument, FrozenNumber):
            return Operand(before, after, name, bool(before != after))
        return Operand(before, after.clone(), name, not has_same_bits(before, after))

    def _side_by_side(
        self, now: EagerRun, then: EagerRun, *, exact: bool
    ) -> tuple[int, Gap] | None:
        """The first operator whose result the program's changes since the capture decide."""
        first: tuple[int, Gap] | None = None
        self._rewind()
        for index in self._operators.run:
            each = self._operators.all[index]
            drawn = generator_state() if each.skipped == "random" else None
            now.step(index)
            if drawn is not None:
                set_generator_state(drawn)
            then.step(index)
            for memory in each.fills if first is None else ():
                gap = _beyond(now.tensor(memory), then.tensor(memory), exact=exact)
                if gap is not None and first is None:
                    first = index, gap
        return first


def _beyond(
    expected: torch.Tensor, actual: torch.Tensor, *, exact: bool, drift: Gap | None = None
) -> Gap | None:
    """How far two tensors differ; None if rounding, or eager's own drift, is as far."""
    gap = gap_between("", expected, actual)
    if gap is None or exact or not gap.is_measurable:
        return gap
    is_near = gap.is_rounding or (drift is not None and is_as_far(gap, drift.max_abs))
    return None if is_near else gap
