"""Records the device's part of a run with the very tensors that it used, and runs it again in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from graphdoctor.device.observe.collectives import finish_transfers
from graphdoctor.device.observe.dispatch import is_unblocked_copy_to_host
from graphdoctor.device.observe.fallback import run_operator
from graphdoctor.device.observe.operators import (
    Call,
    OperatorFacts,
    each_in,
    replaced,
    tensors_of_call,
    written_tensors,
)
from graphdoctor.device.observe.storages import (
    Geometry,
    StorageInfo,
    StorageTable,
    is_default,
    is_plain,
    parts_of,
)
from graphdoctor.operators import COPIES
from graphdoctor.values.locations import Location


@dataclass(frozen=True, slots=True)
class Made:
    """A result that each replay makes anew, in memory of its own: where it lay in the run of the tape.

    A graph's pool uses the memory of what nobody holds again; a tape that held it would hold every
    intermediate value of a step. What is on the CPU in eager and on the device in a capture, as attention's
    random seed and offset, can have no memory at all.
    """

    entry: int
    position: int | None
    info: StorageInfo
    geometry: Geometry
    is_on_device: bool

    @property
    def key(self) -> tuple[int, int | None]:
        return self.entry, self.position

    def of(self, result: Any) -> torch.Tensor:
        """It in what the entry gave in a replay, laid out as it was then."""
        tensor: torch.Tensor = result if self.position is None else result[self.position]
        shape, stride = self.geometry.shape, self.geometry.stride
        if tuple(tensor.shape) != shape:
            raise RuntimeError(
                f"a result has the shape {tuple(tensor.shape)}, and had {shape} in the capture"
            )
        if tensor.stride() == stride:
            return tensor
        return tensor.new_empty_strided(shape, stride).copy_(tensor)


Results = dict[tuple[int, int | None], torch.Tensor]  # of a replay, by entry and position


@dataclass(frozen=True, slots=True)
class FromEntry:
    """An argument that an earlier entry makes anew in each replay, or a part of it."""

    made: Made
    geometry: Geometry

    def of(self, results: Results) -> torch.Tensor:
        """The argument among a replay's results."""
        tensor, then = results[self.made.key], self.made.geometry
        if self.geometry == then:
            return tensor
        moved = int(tensor.storage_offset()) - then.offset
        return self.geometry.of(tensor.untyped_storage(), moved=moved)


# A GPU's own generator is where it was in eager, whatever the host has drawn meanwhile.


@dataclass(frozen=True, slots=True)
class StateRead:
    """The generator's state, read for the so-many-th time."""

    number: int


@dataclass(frozen=True, slots=True)
class StateSet:
    """The generator goes back to the state that was read then."""

    number: int


class HostDraws:
    """Draws, and looks at the generator's state, by how many `entries` of a tape came before."""

    def __init__(self, entries: Sized) -> None:
        self._entries = entries
        self._draws: dict[int, list[Call | StateRead | StateSet]] = {}
        self._states_read: list[bytes] = []
        self._states: dict[int, torch.Tensor] = {}  # of the replay that runs

    def add(self, draw: Call | StateRead | StateSet) -> None:
        self._draws.setdefault(len(self._entries), []).append(draw)

    def read_state(self, state: torch.Tensor) -> None:
        """Keep that the generator's state was read: it is another one in each replay."""
        self.add(StateRead(len(self._states_read)))
        self._states_read.append(bytes(state.numpy()))

    def set_state(self, state: torch.Tensor) -> None:
        """Keep that the generator went back to a state that was read since the capture began.

        So a GPU does it too: kernels count their random numbers from where the replay begins
        (measured on NVIDIA H200, torch 2.11.0, 2026-11-22).
        """
        contents = bytes(state.numpy())
        if contents in self._states_read:
            self.add(StateSet(self._states_read.index(contents)))

    def begin(self) -> None:
        """A replay begins."""
        self._states.clear()

    def again(self, place: int) -> None:
        """Do again what came before the entry of this place."""
        for draw in self._draws.get(place, ()):
            if isinstance(draw, StateRead):
                self._states[draw.number] = torch.default_generator.get_state()
            elif isinstance(draw, StateSet):
                torch.default_generator.set_state(self._states[draw.number])
            else:
                # What a draw may write into: the host's own tensors stay as they are.
                given = tree_map_only(torch.Tensor, torch.clone, (draw.args, draw.kwargs))
                run_operator(Call(draw.func, draw.facts, *given))

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those that are drawn into, or by."""
        for draw in (draw for draws in self._draws.values() for draw in draws):
            if isinstance(draw, Call):
                yield from draw.inputs


def draws_by_default(call: Call) -> bool:
    """Whether a call draws from the default generator."""
    generator = call.kwargs.get("generator")
    return call.facts.is_random and (generator is None or is_default(generator))


_RESIZE = OperatorFacts(
    name="storage.resize_", base_name="resize_", tags=(), written_args=(), written_kwargs=(),
    writes_if=None, aliases=False, is_random=False, makes_garbage=False, is_aten=False,
    is_composite=False, is_collective=False, is_marker=False, is_higher_order=False,
)  # fmt: skip
# They turn the tensor that they are given, as t_() does, and launch nothing: what uses it later knows how it lies.
_TURNS = "inplace_view"
_MAY_MOVE = frozenset({"resize_", "resize_as_"})


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
    grad_enabled: bool  # some CPU kernels choose another algorithm by it, such as oneDNN's LSTM

    def call(self, made: Results) -> Call:
        """The call once more; `made` are results of this replay."""
        args, kwargs = self.args, self.kwargs
        if made:
            args, kwargs = (
                replaced(each, FromEntry, lambda source: source.of(made)) for each in (args, kwargs)
            )
        call = Call(self.func, self.facts, args, kwargs)
        call.on_cuda = True
        return call


@contextmanager
def running_again(*, with_inference: bool) -> Iterator[None]:
    """Entries may be called here: the modes stay out, since a replay is the device's work, not the host's."""
    with (
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._DisableAutocast(),  # it was applied when the operators were captured
        torch.inference_mode(with_inference),
        torch.enable_grad(),  # puts back what there was
    ):
        yield


class Tape:
    """Operators in the order they ran. `replay` runs them again on the same storages.

    Scalars are frozen as they were. A CPU tensor of no dimension is frozen too: CUDA kernels take
    its value as an argument, and only copies read host memory in a replay. Random operators draw
    afresh.

    `one_generator`: the device draws from the host's generator, as the emulated one does. What the
    host drew is then drawn again, and thrown away: a GPU's own generator is where it was in eager.
    """

    def __init__(self, table: StorageTable, *, one_generator: bool) -> None:
        self._table = table
        self._one_generator = one_generator
        self.entries: list[TapeEntry] = []
        self._made: dict[int, Made] = {}  # by storage number, until it is known who holds them
        self._wanted: dict[int, list[Made]] = {}  # by the entry that makes it, of what others use
        self._done: dict[int, list[Made]] = {}  # by the entry that uses it last
        self.host_draws = HostDraws(self.entries)
        self._resized: dict[int, tuple[torch.UntypedStorage, int]] = {}  # with its size before
        self.has_inference = False  # only inference mode may write into tensors that it has made

    def add(self, call: Call, location: Location | None) -> None:
        """Keep a call that ran on the device, unless replaying it would do nothing (a view)."""
        to_host = is_unblocked_copy_to_host(call)
        if not call.on_cuda and not to_host:
            if self._one_generator and draws_by_default(call):
                args, kwargs = self._frozen(call, by_value=True)
                self.host_draws.add(Call(call.func, call.facts, args, kwargs))
            return
        self.has_inference = self.has_inference or torch.is_inference_mode_enabled()
        made = self.results(call)
        is_kept = self._table.is_pinned if to_host else self._table.is_cuda
        anew = self._made_anew(made, is_kept)
        fills = tuple(
            (p, _alias(tensor))
            for p, tensor in made
            if p not in anew and is_kept(tensor) and not tensor._is_zerotensor()  # it has no memory
        )
        writes = bool(call.facts.written_args or call.facts.written_kwargs)
        if _TURNS in call.facts.tags and call.facts.base_name not in _MAY_MOVE:
            return
        is_filled = any(each.is_on_device for each in anew.values())
        if not fills and not is_filled and not writes and call.facts.base_name != "send":
            return
        args, kwargs = self._frozen(call, by_value=call.facts.base_name not in COPIES)
        entry = TapeEntry(
            func=call.func,
            facts=call.facts,
            args=args,
            kwargs=kwargs,
            fills=fills,
            location=location,
            grad_enabled=torch.is_grad_enabled(),
        )
        self._made.update((each.info.number, each) for each in anew.values())
        self.entries.append(entry)

    def _made_anew(
        self,
        made: tuple[tuple[int | None, torch.Tensor], ...],
        is_kept: Callable[[torch.Tensor], bool],
    ) -> dict[int | None, Made]:
        """By position: what a replay may make in other memory, since its own is all that it fills."""
        infos = [self._table.info(tensor) for _, tensor in made]
        times = Counter(info.number for info in infos)
        return {
            position: Made(
                len(self.entries), position, info, Geometry.of_tensor(tensor), is_kept(tensor)
            )
            for (position, tensor), info in zip(made, infos, strict=True)
            if is_plain(tensor) and times[info.number] == 1 and info.number not in self._made
        }

    def add_resize(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """Keep that a storage was freed, or got memory again: a graph does both in its own pool."""
        self._resized.setdefault(storage._cdata, (storage, storage.nbytes()))
        entry = TapeEntry(
            func=torch.UntypedStorage.resize_,
            facts=_RESIZE,
            args=(storage, size_bytes),
            kwargs={},
            fills=(),
            location=None,
            grad_enabled=torch.is_grad_enabled(),
        )
        self.entries.append(entry)

    def results(self, call: Call) -> tuple[tuple[int | None, torch.Tensor], ...]:
        """What a call made, with the position in its result."""
        if call.facts.makes_garbage:
            return ()
        number = self._table.info
        read = {number(tensor).number for tensor in call.inputs}
        result = call.result
        if isinstance(result, torch.Tensor):
            return () if number(result).number in read else ((None, result),)
        if not isinstance(result, (tuple, list)):
            return ()
        return tuple(
            (position, item)
            for position, item in enumerate(result)
            if isinstance(item, torch.Tensor) and number(item).number not in read
        )

    def _frozen(self, call: Call, *, by_value: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        make = partial(self._frozen_tensor, by_value=by_value)
        return replaced(call.args, torch.Tensor, make), replaced(call.kwargs, torch.Tensor, make)

    def _frozen_tensor(self, value: torch.Tensor, *, by_value: bool) -> FromEntry | torch.Tensor:
        made = self._made.get(self._table.info(value).number)
        if made is not None and self._is_anew(value, made):
            return FromEntry(made, Geometry.of_tensor(value))
        alias = _alias(value)
        if by_value and value.dim() == 0 and not self._table.is_cuda(value):
            with torch._C._DisableTorchDispatch():
                return alias.clone()
        return alias

    def _is_anew(self, value: torch.Tensor, made: Made) -> bool:
        """Pinned memory that a copy fills stays itself: the host reads it."""
        return is_plain(value) and (self._table.is_cuda(value) or not made.is_on_device)

    def _settle(self) -> None:
        """Fill what somebody outside holds; what nobody does is made anew, and given back after its last use."""
        if not self._made:
            return
        held = {number: made.info.storage() for number, made in self._made.items()}
        fills: dict[int, list[tuple[int | None, torch.Tensor]]] = {}
        for number, made in self._made.items():
            storage = held[number]
            if storage is not None and made.is_on_device:
                fills.setdefault(made.entry, []).append((made.position, made.geometry.of(storage)))
        self._made.clear()

        def settled(source: FromEntry) -> Any:
            storage = held[source.made.info.number]
            if storage is None or not source.made.is_on_device:
                return source
            return source.geometry.of(storage)

        last: dict[Made, int] = {}
        for index, entry in enumerate(self.entries):
            args = replaced(entry.args, FromEntry, settled)
            kwargs = replaced(entry.kwargs, FromEntry, settled)
            last.update((source.made, index) for source in each_in((args, kwargs), FromEntry))
            filled = (*entry.fills, *fills.get(index, ()))
            self.entries[index] = replace(entry, args=args, kwargs=kwargs, fills=filled)
        for made, index in last.items():
            self._wanted.setdefault(made.entry, []).append(made)
            self._done.setdefault(index, []).append(made)

    def replay(self) -> None:
        """Run every operator again; results that somebody holds go into the tensors of the first run."""
        with running_again(with_inference=self.has_inference):
            self._settle()
            results: Results = {}
            self.host_draws.begin()
            for storage, size_bytes in self._resized.values():
                if storage.nbytes() < size_bytes:  # the replay before has freed it
                    storage.resize_(size_bytes)
            for index, entry in enumerate(self.entries):
                self.host_draws.again(index)
                torch._C._set_grad_enabled(entry.grad_enabled)
                result = run_operator(entry.call(results))
                for made in self._wanted.get(index, ()):
                    results[made.key] = made.of(result)
                for position, tensor in entry.fills:
                    new = result if position is None else result[position]
                    if new is not tensor:
                        _fill(tensor, new)
                for done in self._done.get(index, ()):
                    del results[done.key]
            finish_transfers()
            self.host_draws.again(len(self.entries))

    def references(self) -> Counter[int]:
        """How many tensors of the tape lie on each memory, by the storage's address."""
        self._settle()
        return self.references_to_outside()

    def references_to_outside(self) -> Counter[int]:
        """The same of memory from outside the capture; of what the tape makes it says nothing before a replay."""
        held: dict[int, torch.Tensor] = {}
        held.update((id(tensor), tensor) for tensor in self.host_draws.tensors())
        for entry in self.entries:
            tensors = tensors_of_call(entry.args, entry.kwargs)
            held.update((id(tensor), tensor) for tensor in tensors)
            held.update((id(tensor), tensor) for _, tensor in entry.fills)
        parts = (part for tensor in held.values() for part in parts_of(tensor))
        return Counter(part.untyped_storage()._cdata for part in parts)

    def last_writer(self, tensor: torch.Tensor) -> tuple[str, Location | None] | None:
        """The last operator that wrote into a tensor's storage, and its line."""
        self._settle()
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


def _fill(tensor: torch.Tensor, made: torch.Tensor) -> None:
    """Put a result into the tensor of the first run; `copy_` would give a sparse one new memory."""
    if tensor.layout is torch.strided:
        tensor.copy_(made)
        return
    for part, new in zip(parts_of(tensor), parts_of(made), strict=True):
        part.copy_(new)
