"""Finds results of replays that the program keeps or reads after a later replay wrote over them."""

from __future__ import annotations

import ast
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from graphdoctor.device.observe.operators import Call, Observer, OperatorFacts, tensors_of
from graphdoctor.device.observe.storages import Geometry, StorageTable, is_plain
from graphdoctor.measure.audit.places import VariablesWalk
from graphdoctor.source.trees import owner_of, scope_at, tree_of
from graphdoctor.target.frames import locate
from graphdoctor.target.state.paths import StatePath
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.values.audited import OverwrittenOutput
from graphdoctor.values.locations import Location

_MOST_LOOKS = (
    8  # at all variables while an output gets references; then each time they have doubled
)
_ADDS = frozenset({"append", "appendleft", "add", "extend", "insert", "setdefault", "update"})
_use_count: Callable[[int], int] = torch._C._storage_Use_Count
_reference_count = sys.getrefcount


@dataclass(slots=True)
class Replays:
    """How often a graph was replayed, and where it was captured and replayed last."""

    captured_at: Location | None
    count: int = 0
    last_at: Location | None = None


class _Made(NamedTuple):
    """A tensor on an output that the program got after a replay, which is the replay that it shows."""

    replay: int
    geometry: Geometry
    kept_at: Location | None


@dataclass(slots=True, eq=False)
class _Output:
    """Memory that a graph writes: a storage of its capture, or all storages that torch puts around an address.

    torch.compile frees what its capture made, and wraps the same address again after later replays.
    """

    replays: Replays
    # By number. As long as the weak reference is held, no other storage gets the storage's address.
    storages: dict[int, StorageWeakRef] = field(default_factory=dict)
    tensors: list[ref[torch.Tensor]] = field(default_factory=list)  # the first on each storage
    is_reported: bool = False
    most: int = 0  # references, so far
    looks: int = 0
    lengths: dict[tuple[int, Geometry], int] = field(default_factory=dict)  # by container
    newest: dict[Geometry, tuple[int, ref[torch.Tensor]]] = field(default_factory=dict)

    def references(self) -> int:
        """Tensors on the storages, and references of Python to `tensors`."""
        count = sum(_use_count(weak.cdata) for weak in self.storages.values())
        for each in self.tensors:
            tensor = each()
            if tensor is not None:
                count += _reference_count(tensor)
        return count

    def is_expired(self) -> bool:
        """Whether nothing refers to the memory any more."""
        return all(weak.expired() for weak in self.storages.values())


class GraphOutputs:
    """The outputs of one graph, and their counts of references when these changed last."""

    def __init__(self, outputs: Iterable[_Output] = ()) -> None:
        self.watched = list(outputs)
        self._rebuilt: dict[int, _Output] = {}  # by address
        self._counts: list[int] | None = None  # None: not counted since something was added
        self.count_again()

    def at(self, address: int, replays: Replays) -> _Output | None:
        """The output that torch puts tensors around; None if it was reported. It is counted again."""
        output = self._rebuilt.get(address)
        if output is None:
            output = self._rebuilt[address] = _Output(replays)
        if output.is_reported:
            return None
        if output not in self.watched:
            self.watched.append(output)
        self._counts = None
        return output

    def count_again(self) -> None:
        """Also forget what was reported, and tensors and storages that are gone."""
        self.watched = [
            each for each in self.watched if not each.is_reported and not each.is_expired()
        ]
        for output in self.watched:
            output.tensors = [each for each in output.tensors if each() is not None]
        storages = [weak for output in self.watched for weak in output.storages.values()]
        self._addresses = [weak.cdata for weak in storages]
        self._tensors = [each for output in self.watched for each in output.tensors]
        self._counts = self._count()

    def have_changed(self) -> bool:
        """Whether a count is another one. Each replay asks, so the loops are C's."""
        return self._count() != self._counts

    def _count(self) -> list[int]:
        tensors = [each() for each in self._tensors]
        return [*map(_use_count, self._addresses), *map(_reference_count, tensors)]


class HeldOutputs(Observer):
    """Reports an output once: in a container that grows, or where an operator reads an old result.

    As an observer, of the emulated device, it sees each tensor that the program makes of an output, and
    each operator that reads one. Containers are looked at on both devices.
    """

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self._outputs: dict[int, _Output] = {}
        self._made = WeakTensorKeyDictionary()
        self.is_capturing = False
        self.found: list[OverwrittenOutput] = []

    def begin(self, tensors: Iterable[ref[torch.Tensor]], replays: Replays) -> GraphOutputs:
        """Before a graph's first replay: the outputs among the results of its capture."""
        by_number: dict[int, _Output] = {}
        tensor: torch.Tensor | None = None
        for each in tensors:
            tensor = each()
            if tensor is None or not is_plain(tensor):
                continue
            info = self._table.info(tensor)
            output = by_number.get(info.number)
            if output is None:
                output = by_number[info.number] = _Output(replays)
                output.storages[info.number] = StorageWeakRef(tensor.untyped_storage())
            output.tensors.append(each)
        del tensor  # a reference, which are counted now
        for output in by_number.values():
            output.most = output.references()
        self._outputs.update(by_number)
        return GraphOutputs(by_number.values())

    def add_rebuilt(self, outputs: GraphOutputs, tensor: torch.Tensor, replays: Replays) -> None:
        """After a replay: a tensor that torch has put around memory that the graph writes."""
        number = self._table.info(tensor).number
        if number in self._outputs:  # it shares the storage of another output
            return
        storage = tensor.untyped_storage()
        output = outputs.at(storage.data_ptr(), replays)
        if output is None:
            return
        for each, weak in list(output.storages.items()):
            if weak.expired():
                del output.storages[each]
                self._outputs.pop(each, None)
        output.storages[number] = StorageWeakRef(storage)
        output.tensors = [*(each for each in output.tensors if each() is not None), ref(tensor)]
        self._outputs[number] = output

    def have_new_references(self, outputs: GraphOutputs) -> bool:
        """Whether variables are worth a look before the graph is replayed again."""
        if not outputs.have_changed():
            return False
        grown = False
        for output in outputs.watched:
            if (now := output.references()) <= output.most:
                continue
            output.looks += 1
            if output.looks <= _MOST_LOOKS or now >= 2 * output.most:
                output.most = now
                grown = True
        outputs.count_again()
        return grown

    def look(self, roots: Mapping[str, object], frames: list[FrameType]) -> None:
        """Report containers that hold the same part of an output more often than at the last look."""
        with plain_torch():
            for path, value, _ in VariablesWalk(roots):
                if not isinstance(value, (list, tuple, deque, dict)):
                    continue
                members = value.values() if isinstance(value, dict) else value
                held: Counter[tuple[_Output, Geometry]] = Counter()
                for member in list(members):
                    if isinstance(member, torch.Tensor) and is_plain(member):
                        output = self._outputs.get(self._table.info(member).number)
                        if output is not None:
                            held[output, Geometry.of_tensor(member)] += 1
                for (output, geometry), count in held.items():
                    self._compare(path, id(value), output, geometry, count, frames)

    def _compare(
        self, path: StatePath, container: int, output: _Output, geometry: Geometry, count: int,
        frames: list[FrameType],
    ) -> None:  # fmt: skip
        before = output.lengths.get((container, geometry), 0)
        output.lengths[container, geometry] = count
        if 0 < before < count and not output.is_reported:
            kept_at = line_that_keeps(path.own_name, frames)
            self._report(output, str(path), geometry, kept_at, read_at=None, operator="")

    def before(self, call: Call) -> None:
        if not self._outputs or self.is_capturing or uses_no_memory(call.facts):
            return
        for tensor in call.inputs:
            made = self._made.get(tensor)
            if made is None:
                continue
            output = self._outputs.get(self._table.info(tensor).number)
            if output is None:
                continue
            # A view that is made once and read after each replay is as good as the static output.
            newer, other = output.newest.get(made.geometry, (0, None))
            if newer > made.replay and other is not None and other() is not None:
                read_at = locate().location
                self._report(
                    output,
                    "",
                    made.geometry,
                    made.kept_at,
                    read_at=read_at,
                    operator=call.facts.name,
                )

    def after(self, call: Call) -> None:
        if not self._outputs or self.is_capturing:
            return
        for tensor in tensors_of(call.result):
            if not is_plain(tensor) or any(tensor is each for each in call.inputs):
                continue
            output = self._outputs.get(self._table.info(tensor).number)
            if output is None or not output.replays.count:
                continue
            made = next((one for each in call.inputs if (one := self._made.get(each))), None)
            geometry = Geometry.of_tensor(tensor)
            replay = made.replay if made is not None else output.replays.count
            self._made[tensor] = _Made(replay, geometry, locate().location)
            if replay == output.replays.count:
                output.newest[geometry] = (replay, ref(tensor))

    def _report(
        self, output: _Output, name: str, geometry: Geometry, kept_at: Location | None, *,
        read_at: Location | None, operator: str,
    ) -> None:  # fmt: skip
        for number in output.storages:
            self._outputs.pop(number, None)
        output.is_reported = True
        replays = output.replays
        self.found.append(
            OverwrittenOutput(
                name=name,
                shape=geometry.shape,
                dtype=str(geometry.dtype).removeprefix("torch."),
                operator=operator,
                kept_at=kept_at,
                read_at=read_at,
                captured_at=replays.captured_at,
                replayed_at=replays.last_at,
                replay=replays.count,
            )
        )


def uses_no_memory(facts: OperatorFacts) -> bool:
    """Views, and operators that take a shape from a tensor: no kernel of theirs reads it."""
    if facts.written_args or facts.written_kwargs:
        return False
    name = facts.base_name
    return facts.aliases or facts.makes_garbage or name.endswith("_like") or name.startswith("new_")


def line_that_keeps(name: str, frames: list[FrameType]) -> Location | None:
    """The first line that puts something into a container of this name: in the frames' functions, else their files."""
    files = dict.fromkeys(frame.f_code.co_filename for frame in frames)
    functions = [(frame.f_code.co_filename, owner_of(frame.f_code)) for frame in frames]
    for file, tree in (*functions, *((file, tree_of(file)) for file in files)):
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.expr | ast.stmt) and _keeps(node, name):
                scope = scope_at(file, node.lineno)
                function = "<module>" if scope is None else getattr(scope, "name", "<module>")
                return Location(file=file, line=node.lineno, function=function)
    return None


def _keeps(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=container, attr=method)) if method in _ADDS:
            pass
        case ast.Assign(targets=[ast.Subscript(value=container)]):
            pass
        case ast.AugAssign(target=container):
            pass
        case _:
            return False
    match container:
        case ast.Name(id=own) | ast.Attribute(attr=own):
            return own == name
    return False
