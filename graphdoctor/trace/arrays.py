"""A profiler trace as flat arrays: device events, API calls, operators, Python frames; integer ns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KINDS = ("kernel", "memcpy", "memset")
NO_CORRELATION = -1


def no_ints() -> Ints:
    return np.empty(0, np.int64)


def distinct(rows: Ints, count: int) -> Ints:
    """The rows of a table of `count` rows, each once, in order; quicker than sorting them."""
    seen = np.zeros(count, np.bool_)
    seen[rows] = True
    return np.flatnonzero(seen)


def median(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> float:
    """The middle of at least one value; numpy's own loads masked arrays first, which takes longer."""
    middle = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, middle)[middle])
    low, high = np.partition(values, (middle - 1, middle))[middle - 1 : middle + 1]
    return (float(low) + float(high)) / 2


def median_of(values: Sequence[float]) -> float:
    """Return the middle of at least one value of a list."""
    return median(np.array(values, np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of equal length, one row an event, ordered by start and then the longer first.

    `name` and `thread` are places in the trace's lists of names and of threads.
    """

    name: Ints = field(default_factory=no_ints)
    start_ns: Ints = field(default_factory=no_ints)
    end_ns: Ints = field(default_factory=no_ints)

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Ints | Mask) -> Self:
        """These rows only, in this order."""
        return replace(self, **{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    def in_order(self) -> Self:
        """By start, then the longer first, then as they stand."""
        return self.take(np.lexsort((-self.end_ns, self.start_ns)))


@dataclass(frozen=True, slots=True, eq=False)
class Spans(Table):
    """Operators, Python frames or annotations of host threads."""

    thread: Ints = field(default_factory=no_ints)


def together(tables: Sequence[Spans]) -> Spans:
    """The spans of several tables as one, in order."""
    columns = (
        np.concatenate([getattr(table, column.name) for table in tables])
        for column in fields(Spans)
    )
    return Spans(*columns).in_order()


@dataclass(frozen=True, slots=True, eq=False)
class Calls(Spans):
    """CUDA or HIP runtime and driver calls; the correlation is -1 where there is none."""

    correlation: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEvents(Table):
    """Kernels, copies and fills; `kind` is a place in KINDS.

    The correlation joins an event to its call, N to 1 in a graph; `graph` is the id of the graph
    or 0, which older profilers do not write. `device` and `stream` are places in the trace's lists, `message`
    in its messages, or -1.
    """

    kind: Ints = field(default_factory=no_ints)
    device: Ints = field(default_factory=no_ints)
    stream: Ints = field(default_factory=no_ints)
    correlation: Ints = field(default_factory=no_ints)
    graph: Ints = field(default_factory=no_ints)
    nbytes: Ints = field(default_factory=no_ints)
    message: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges(Spans):
    """Calls of collectives on the host; `message` is a place in the trace's messages."""

    message: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEvents(Spans):
    """Blocks that an allocator gave (`nbytes` above 0) or took back, and what it held then.

    `device` is that of the profiler, -1 for the host's memory. Names, and ends, are those of instants.
    """

    nbytes: Ints = field(default_factory=no_ints)
    allocated: Ints = field(default_factory=no_ints)
    reserved: Ints = field(default_factory=no_ints)
    device: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True)
class Message:
    """What one collective moves: the larger of its input and output, in bytes, 0 where the trace does not say.

    `group` is the name of the process group, `ranks` its members; "" and () where the trace does not say.
    """

    collective: str
    nbytes: int = 0
    dtype: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class About:
    """What the file says about itself; every field may be missing."""

    device_names: tuple[str, ...] = ()
    worker: str = ""  # "rank 3" or the host's name
    writer: Literal["torch", "nsight"] = "torch"
    with_stack: bool = False
    record_shapes: bool = False
    profile_memory: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One trace file.

    `is_cut`: the file does not reach to its end. `warnings` say what was left out or repaired while reading.
    """

    about: About = field(default_factory=About)
    names: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    device_events: DeviceEvents = field(default_factory=DeviceEvents)
    calls: Calls = field(default_factory=Calls)
    operators: Spans = field(default_factory=Spans)
    frames: Spans = field(default_factory=Spans)
    annotations: Spans = field(default_factory=Spans)
    overheads: Spans = field(default_factory=Spans)
    exchanges: Exchanges = field(default_factory=Exchanges)
    messages: tuple[Message, ...] = ()
    memory: MemoryEvents = field(default_factory=MemoryEvents)
    events: int = 0  # of every kind, those that are of no use here included
    is_cut: bool = False
    warnings: tuple[str, ...] = ()

    def named(self, table: Table, test: Callable[[str], bool]) -> Mask:
        """The rows whose name passes the test, which is asked once of each name that is used."""
        passes = np.zeros(len(self.names), np.bool_)
        used = distinct(table.name, len(self.names))
        passes[used] = [test(self.names[name]) for name in used.tolist()]
        return passes[table.name]

    def text(self, name: int) -> str:
        """The name of this number; "" for -1."""
        return self.names[name] if name >= 0 else ""
