"""Collect typed events, run by run, into the columns of a Trace."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from graphdoctor.trace.arrays import (
    NO_CORRELATION,
    Ints,
    Message,
    Table,
    no_ints,
)
from graphdoctor.trace.read.decode import MEMORY, TABLES, WORK_KINDS, EventType, Instant, Unused

HOST_TABLES = ("operators", "frames", "annotations", "overheads")
_Table = TypeVar("_Table", bound=Table)
_EACH_NAME = 200  # bytes, text and table


class _Numbers(dict[Hashable, int]):
    """Gives equal things equal numbers, counting from 0."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class _Labels(_Numbers):
    """The same for what has a name: 7 and "7" are one."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = _Numbers()

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = self.texts[str(key)]
        return number


class Columns:
    """Collects columns; every `add` is one run of events, which is not kept. `types` are those of the categories."""

    def __init__(self, types: Mapping[str, EventType]) -> None:
        self.names = _Numbers()
        self.threads = _Numbers()
        self.devices = _Labels()
        self.streams = _Labels()
        self.messages = _Numbers()
        self.events = self.backwards = self.out_of_range = 0
        self._column_bytes = 0
        self._parts: dict[str, list[list[Ints]]] = {
            table: [] for table in ("device", "calls", *HOST_TABLES, "exchanges", "memory")
        }
        self._tables: dict[EventType, str] = {
            kind: TABLES.get(category, "memory" if issubclass(kind, Instant) else "")
            for category, kind in types.items()
        } | {Instant: "memory", Unused: ""}
        self._kinds = {types[category]: kind for category, kind in WORK_KINDS.items()}

    def add(self, events: Sequence[Any]) -> None:
        found: dict[str, list[Any]] = {table: [] for table in ("", *self._parts)}
        put = {kind: found[table].append for kind, table in self._tables.items()}
        for event in events:
            put[type(event)](event)
        self.events += len(events)
        memory = found["memory"]
        found["memory"] = [one for one in memory if one.name == MEMORY and one.args is not None]
        for table in self._parts:
            if table == "exchanges" and RECORDED in self.names:
                found[table] = [one for one in found["operators"] if one.name == RECORDED]
            if found[table]:
                columns = self._columns(table, found[table])
                self._parts[table].append(columns)
                self._column_bytes += sum(column.nbytes for column in columns)

    def _columns(self, table: str, events: list[Any]) -> list[Ints]:
        start, end = self._times(events)
        name = _numbered(self.names, [event.name for event in events])
        if table == "device":
            return [name, start, end, *self._device_columns(events)]
        pairs = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        threads = np.fromiter(map(self.threads.__getitem__, pairs), np.int64, len(events))
        if table == "calls":
            return [name, start, end, threads, correlations([event.args for event in events])]
        if table == "exchanges":
            return [name, start, end, threads, self._messages([event.args for event in events])]
        if table == "memory":
            return [name, start, end, threads, *_memory_columns(events)]
        return [name, start, end, threads]

    def _device_columns(self, events: list[Any]) -> list[Ints]:
        args = [event.args for event in events]
        device = [
            event.pid if arg is None or arg.device is None else arg.device
            for event, arg in zip(events, args, strict=True)
        ]
        stream = [
            event.tid if arg is None or arg.stream is None else arg.stream
            for event, arg in zip(events, args, strict=True)
        ]
        message = self._messages(args)
        nbytes = integers([0 if arg is None else arg.nbytes or 0 for arg in args])
        if len(self.messages):
            sizes = np.array([key.nbytes for key in self.known_messages()] or [0], np.int64)
            nbytes = np.where((message >= 0) & (nbytes == 0), sizes[message], nbytes)
        kinds = self._kinds
        return [
            np.array([kinds[type(event)] for event in events], np.int64),
            _numbered(self.devices, device),
            _numbered(self.streams, stream),
            correlations(args),
            integers([0 if arg is None else arg.graph or 0 for arg in args]),
            nbytes,
            message,
        ]

    def _messages(self, args: Sequence[Any]) -> Ints:
        """The place of each event's message, or -1: most have none."""
        found = np.full(len(args), -1, np.int64)
        speaking = [
            place
            for place, arg in enumerate(args)
            if arg is not None and (arg.collective is not None or arg.elements is not None)
        ]
        for place in speaking:
            message = message_of(args[place])
            found[place] = -1 if message is None else self.messages[message]
        return found

    def known_messages(self) -> list[Message]:
        """Of the host's calls of collectives and of kernels."""
        return [key for key in self.messages if isinstance(key, Message)]

    def _times(self, events: list[Any]) -> tuple[Ints, Ints]:
        """Starts and ends; the duration is rounded on its own, so that `ts` costs it nothing."""
        start, outside = ns([event.ts for event in events])
        length, outside_too = ns([event.dur for event in events])
        self.out_of_range += outside + outside_too
        self.backwards += int(np.count_nonzero(length < 0))
        return start, start + np.maximum(length, 0)

    @property
    def nbytes(self) -> int:
        """What the columns and the names take."""
        return self._column_bytes + _EACH_NAME * len(self.names)

    def name_texts(self) -> tuple[str, ...]:
        """In the order of their numbers; "" for what has none."""
        return tuple("" if name is None else str(name) for name in self.names)

    def thread_labels(self) -> tuple[str, ...]:
        """Process and thread, in the order of their numbers."""
        return tuple("/".join(map(str, key)) for key in self.threads if isinstance(key, tuple))

    def table(self, name: str, kind: type[_Table]) -> _Table:
        """The events of all runs, in order; may be asked for once."""
        return kind(*_ordered(self._parts[name], len(fields(kind))))


def _numbered(numbers: _Numbers, keys: Sequence[Hashable]) -> Ints:
    return np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))


def _memory_columns(events: Sequence[Any]) -> list[Ints]:
    """Bytes, what the allocator holds then, and the device: -1 for the host's memory (type 0)."""
    args = [event.args for event in events if event.args is not None]
    return [
        integers([arg.block for arg in args]),
        integers([arg.allocated for arg in args]),
        integers([arg.reserved for arg in args]),
        integers([arg.memory_device if arg.memory_kind not in (0, None) else -1 for arg in args]),
    ]


def _order(start: Ints, end: Ints) -> Ints | None:
    """By start, then the longer first, then as they stand in the file; None where they already are."""
    if np.all(start[1:] > start[:-1]):
        return None
    order: Ints = np.lexsort((-end, start))
    return order


def _ordered(parts: list[list[Ints]], columns: int) -> list[Ints]:
    """The columns of all parts in order. The parts are used up: with both, memory would peak here."""
    if not parts:
        return [no_ints() for _ in range(columns)]

    def joined(place: int) -> Ints:
        column = np.concatenate([part[place] for part in parts])
        for part in parts:
            part[place] = column[:0]
        return column

    start, end = joined(1), joined(2)
    order = _order(start, end)
    found = []
    for place in range(columns):
        column = {1: start, 2: end}[place] if place in (1, 2) else joined(place)
        found.append(column if order is None else column[order])
    parts.clear()
    return found


# 285 years in us: what is beyond does not fit 64 bits of ns.
_LARGEST_US = 9.0e15
_LARGEST = 2**62  # no counter reaches it


def correlations(args: Sequence[Any]) -> Ints:
    """The ids that join calls and kernels; -1 where there is none."""
    values = [NO_CORRELATION if arg is None else arg.correlation for arg in args]
    return integers(values, NO_CORRELATION)


def integers(values: list[Any], missing: int = 0) -> Ints:
    """Whole numbers, `missing` for what is none and for what no counter reaches.

    They are looked at one by one only where a writer wrote something else.
    """
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value, missing) for value in values], np.int64)


def _integer(value: float | str | None, missing: int) -> int:
    if value is None:
        return missing
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return missing
    return number if abs(number) < _LARGEST else missing


def ns(values: Sequence[int | float | Decimal]) -> tuple[Ints, int]:
    """Microseconds as whole ns; what does not fit becomes 0, and is counted."""
    if isinstance(values[0], Decimal) or isinstance(values[-1], Decimal):
        exact = [0 if abs(float(value)) >= _LARGEST_US else round(value * 1000) for value in values]
        return np.array(exact, np.int64), sum(abs(float(value)) >= _LARGEST_US for value in values)
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        numbers = np.array(
            [float(value) if -_LARGEST_US < value < _LARGEST_US else np.inf for value in values]
        )
    outside = ~(np.abs(numbers) < _LARGEST_US)
    count = int(np.count_nonzero(outside))
    if count:
        numbers = np.where(outside, 0, numbers)
    # Whole us are exact as floats; a thousand times as many ns are not.
    full = np.trunc(numbers)
    return full.astype(np.int64) * 1000 + np.rint((numbers - full) * 1000).astype(np.int64), count


# The operator around each collective, which has its arguments; kernels have them since torch 2.3.
RECORDED = "record_param_comms"
# As torch writes the types of a collective's elements.
_DTYPE_BYTES = {
    **{"Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16},
    **{"Float": 4, "Int": 4, "UInt32": 4, "BFloat16": 2, "Half": 2, "Short": 2, "UInt16": 2},
}
_NUMBER = re.compile(r"\d+")
_MOST_RANKS = 1 << 16


def message_of(args: Any) -> Message | None:
    """None where these are no arguments of a collective."""
    if args.collective is None and not message_bytes(args):
        return None
    return Message(
        collective=args.collective if isinstance(args.collective, str) else "",
        nbytes=message_bytes(args),
        dtype=args.dtype if isinstance(args.dtype, str) else "",
        group=str(args.group) if isinstance(args.group, str | int) else "",
        ranks=_ranks(args.group_ranks),
    )


def message_bytes(args: Any) -> int:
    """The larger of what goes in and what comes out; 0 where the trace does not say."""
    if not isinstance(args.dtype, str):
        return 0
    sizes = (args.elements, args.elements_out)
    elements = max((size for size in sizes if isinstance(size, int)), default=0)
    total = elements * _DTYPE_BYTES.get(args.dtype, 1)
    return total if 0 <= total < 2**62 else 0


def _ranks(text: Any) -> tuple[int, ...]:
    """ "[0, 1, 2]" as numbers; () for what profilers cut short with "..."."""
    if not isinstance(text, str) or "..." in text:
        return ()
    return tuple(int(number) for number in _NUMBER.findall(text)[:_MOST_RANKS])
