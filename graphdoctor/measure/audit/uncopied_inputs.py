"""Finds calls that bring a new tensor for one that a capture read, while nothing copies it there."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import chain, islice
from types import CodeType, FrameType
from typing import NamedTuple
from weakref import ref

import torch

from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.storages import Geometry, StorageTable, is_plain
from graphdoctor.measure.audit.places import CapturedFrames, Place, Variable, expressions_of_program
from graphdoctor.source.trees import owner_of
from graphdoctor.target.frames import is_machinery, locate, locate_from, variables_of
from graphdoctor.target.state.snapshot import plain_torch
from graphdoctor.values.locations import Location

_MOST_TRIES = 3  # operators for each storage, in which names for it are looked for
_MOST_FRAMES = 2  # of the user's that called for a replay, whose arguments are looked at
_DESCRIBE = frozenset({"shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad"})
_MEASURE = frozenset({"size", "dim", "numel", "stride", "data_ptr"})


@dataclass(slots=True)
class CapturedInput:
    """A tensor from outside that the capture reads, and where the program keeps it.

    `owner` is the tensor, or the one that it is a part of: a part may be made for each call.
    """

    number: int
    owner: ref[torch.Tensor]
    geometry: Geometry
    version: int
    operator: str
    location: Location | None
    places: list[Place] = field(default_factory=list)
    # What was in each place at the last check, by number.
    seen: list[int] = field(default_factory=list)

    def captured(self, owner: torch.Tensor) -> torch.Tensor:
        """The tensor as it is now."""
        _, shape, stride, _ = self.geometry
        with plain_torch():
            return owner.as_strided(shape, stride, self.geometry.offset)


class NewTensor(NamedTuple):
    """A tensor that a replay does not read, in the place of one that it reads."""

    read: CapturedInput
    place: Place | None
    name: str
    tensor: torch.Tensor
    passed_at: Location | None


class CapturedInputs(Observer):
    """During one capture, finds the places of tensors that operators read and no capture made."""

    def __init__(self, table: StorageTable, made: Collection[int]) -> None:
        self._table, self._made = table, made
        self._frames = CapturedFrames()
        self._tries: Counter[int] = Counter()
        self._inputs: dict[int, CapturedInput] = {}

    def before(self, call: Call) -> None:
        wanted = set()
        for tensor in call.inputs:
            number = number_of(tensor, self._table)
            if number is None or number in self._made or self._tries[number] == _MOST_TRIES:
                continue
            self._tries[number] += 1
            wanted.add(number)
        for _, expression in expressions_of_program() if wanted else ():
            for place, value in chain.from_iterable(map(expression.places, expression.operands)):
                number = number_of(value, self._table)
                if number not in wanted or not self._frames.holds(place):
                    continue
                assert isinstance(value, torch.Tensor) and number is not None
                found = self._inputs.get(number)
                if found is None:
                    name, location = call.facts.name, locate().location
                    owner = value if value._base is None else value._base
                    found = CapturedInput(
                        number,
                        ref(owner),
                        Geometry.of_tensor(value),
                        value._version,
                        name,
                        location,
                    )
                    self._inputs[number] = found
                if all(place.key != each.key for each in found.places):
                    found.places.append(place)
                    found.seen.append(number)

    def all(self) -> Collection[CapturedInput]:
        """All that have a place, also what a replay may find in other memory."""
        return self._inputs.values()

    def read(self, numbers: Collection[int]) -> list[CapturedInput]:
        """Those of these storages that have a place."""
        return [each for number, each in self._inputs.items() if number in numbers]


def number_of(value: object, table: StorageTable) -> int | None:
    """Of a tensor's storage on the GPU; None of weights, and of tensors that count no versions."""
    if type(value) is not torch.Tensor or not is_plain(value) or value.is_inference():
        return None
    return table.info(value).number if table.is_cuda(value) else None


def new_tensors(
    inputs: list[CapturedInput], frames: list[FrameType], table: StorageTable
) -> Iterator[NewTensor]:
    """New tensors of the same kind that were not copied since the last check."""
    untouched: list[tuple[CapturedInput, torch.Tensor]] = []
    copied: list[torch.Tensor] = []
    for each in inputs:
        owner = each.owner()
        if owner is not None:
            if owner._version == each.version:
                untouched.append((each, each.captured(owner)))
            else:
                copied.append(each.captured(owner))
            each.version = owner._version
    for each, tensor in untouched:
        for position, place in enumerate(each.places):
            now = place.read(frames)
            number = number_of(now, table)
            if number is None or number == each.seen[position]:
                continue
            each.seen[position] = number
            assert isinstance(now, torch.Tensor)
            if number != each.number and _is_alike(tensor, now) and not _is_equal(tensor, now):
                passed_at = None
                if isinstance(place.root, Variable):
                    passed_at = _caller(frames, place.root)
                yield NewTensor(each, place, place.text, now, passed_at)
    for frame in islice(
        (f for f in frames if not is_machinery(f.f_code.co_filename)), _MOST_FRAMES
    ):
        for name in _ignored_arguments(frame.f_code):
            for now in _tensors_in(variables_of(frame).get(name)):
                number = number_of(now, table)
                alike = [(e, t) for e, t in untouched if number is not None and _has_room(t, now)]
                if not alike or any(each.number == number for each, _ in alike):
                    continue
                if any(_has_room(each, now) for each in copied):
                    continue
                if not any(_is_equal(tensor, now) for _, tensor in alike):
                    caller = locate_from(frame.f_back).location
                    yield NewTensor(alike[0][0], None, name, now, caller)


def _caller(frames: list[FrameType], variable: Variable) -> Location | None:
    """Who called the function of an argument; None of another variable."""
    frame = next((each for each in frames if each.f_code is variable.code), None)
    if frame is None or variable.name not in _arguments(variable.code):
        return None
    return locate_from(frame.f_back).location


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _has_room(buffer: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a tensor is of the kind of a buffer's first rows: engines have buffers for their largest batch."""
    if buffer.dtype != new.dtype or not buffer.dim() or not new.dim():
        return _is_alike(buffer, new)
    return buffer.shape[1:] == new.shape[1:] and len(buffer) >= len(new)


def _is_equal(buffer: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a replay reads the right values, however they came there."""
    with plain_torch():
        part = buffer[: len(new)] if new.dim() else buffer
        return part.device == new.device and torch.equal(part, new)


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in (tuple, list):
        for each in value:  # type: ignore[attr-defined]
            if isinstance(each, torch.Tensor):
                yield each
    elif type(value) is dict:
        yield from _tensors_in(tuple(value.values()))


def _arguments(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return code.co_varnames[:count]


# By the identity of a code object, which is held: its hash is slow.
_IGNORED: dict[int, tuple[CodeType, tuple[str, ...]]] = {}


def _ignored_arguments(code: CodeType) -> tuple[str, ...]:
    """The arguments whose values a function neither uses nor hands on; shapes and types may be read."""
    known = _IGNORED.get(id(code))
    if known is None:
        owner = owner_of(code)
        used = set(_used_names(owner)) if owner is not None else set(code.co_varnames)
        ignored = tuple(each for each in _arguments(code) if each not in used)
        known = _IGNORED[id(code)] = code, ignored
    return known[1]


def _used_names(owner: ast.AST) -> Iterator[str]:
    described = set()
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(value=ast.Name() as name, attr=attr) if attr in _DESCRIBE | _MEASURE:
                described.add(id(name))
            case ast.Call(func=ast.Name(id="len" | "isinstance"), args=[ast.Name() as name, *_]):
                described.add(id(name))
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in described
        ):
            yield node.id
