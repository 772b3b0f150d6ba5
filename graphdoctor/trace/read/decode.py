"""Decode runs of events into typed events, and count those that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Literal

import msgspec
from msgspec import Struct, defstruct, field
from msgspec.json import Decoder as Json

from graphdoctor.trace.arrays import KINDS, NO_CORRELATION
from graphdoctor.trace.read.split import in_brackets

TableName = Literal["device", "calls", "operators", "frames", "annotations", "overheads", "memory"]

# Of what a device did, with the places in KINDS. Capital letters are of 2021.
WORK_KINDS = {
    category: KINDS.index(kind)
    for kind, *categories in (
        ("kernel", "kernel", "Kernel"),
        ("memcpy", "gpu_memcpy", "Memcpy"),
        ("memset", "gpu_memset", "Memset"),
    )
    for category in categories
}
# "Runtime" is what torch-tb-profiler calls both of the first.
_CALLS = ("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver")
TABLES: dict[str, TableName] = {
    **dict.fromkeys(WORK_KINDS, "device"),
    **dict.fromkeys(_CALLS, "calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "operators"),
    **dict.fromkeys(("python_function",), "frames"),
    **dict.fromkeys(("user_annotation",), "annotations"),
    **dict.fromkeys(("overhead",), "overheads"),
}
_INSTANTS = "cpu_instant_event"
MEMORY = "[memory]"  # the name of an instant, of whatever category, that says what an allocator did
# Arrows, and spans that repeat what others say.
_OF_NO_USE = (
    *("ac2g", "fwdbwd", "forward_backward", "async_cpu_to_gpu", "async_gpu", "async", "Trace"),
    *("gpu_user_annotation", "cuda_sync", "cuda_event", "cuda_profiler_range"),
)


class MessageArgs(Struct, gc=False):
    """What a collective moves."""

    collective: Any = field(default=None, name="Collective name")
    elements: Any = field(default=None, name="In msg nelems")
    elements_out: Any = field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")


class WorkArgs(MessageArgs, gc=False):
    """Of a kernel, a copy or a fill."""

    correlation: int | None = NO_CORRELATION
    device: int | str | None = None
    stream: int | str | None = None
    nbytes: int | float | str | None = field(default=None, name="bytes")
    graph: int | str | None = field(default=None, name="graph id")


class CallArgs(Struct, gc=False):
    correlation: int | None = NO_CORRELATION


class MemoryArgs(Struct, gc=False):
    block: Any = field(default=None, name="Bytes")
    allocated: Any = field(default=None, name="Total Allocated")
    reserved: Any = field(default=None, name="Total Reserved")
    memory_kind: Any = field(default=None, name="Device Type")
    memory_device: Any = field(default=None, name="Device Id")


class Unused(Struct, gc=False):
    """An event of which nothing is read."""


class Event(Struct, gc=False):
    """What all others have. Integers stay integers: a float would round them."""

    name: str | None = ""
    ts: int | float = 0
    dur: int | float = 0
    pid: int | str | None = 0
    tid: int | str | None = 0


class Span(Event, gc=False, kw_only=True):
    ph: Literal["X"]


class Work(Span, gc=False, kw_only=True):
    args: WorkArgs | None = None


class Call(Span, gc=False, kw_only=True):
    args: CallArgs | None = None


class Operator(Span, gc=False, kw_only=True):
    args: MessageArgs | None = None


class Instant(Event, gc=False, kw_only=True):
    args: MemoryArgs | None = None


EventType = type[Struct]


def types_of_categories() -> Mapping[str, EventType]:
    bases: dict[TableName, EventType] = {"device": Work, "calls": Call, "operators": Operator}
    return {
        **{
            category: _tagged(category, bases.get(table, Span))
            for category, table in TABLES.items()
        },
        **{category: _tagged(category, Unused) for category in _OF_NO_USE},
        _INSTANTS: _tagged(_INSTANTS, Instant),
    }


def _tagged(category: str, base: EventType) -> EventType:
    return defstruct(
        f"{base.__name__}Of{category}", [], bases=(base,), tag_field="cat", tag=category, gc=False
    )


def any_of(types: Mapping[str, EventType]) -> Any:
    """The union of these types, for a decoder."""
    return reduce(or_, types.values())


_SPACES_FOR_CONTROLS = bytes(max(code, 32) if code < 32 else code for code in range(256))
_NOT_A_NUMBER = re.compile(rb'(":\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])', re.IGNORECASE)
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
# Kineto writes times after its base time; from here on a float no longer holds whole ns.
_LARGEST_EXACT_US = 2.0**43


class _Kind(Struct, gc=False):
    """What says of an event of any category whether it is of use."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    ts: int | float = 0
    dur: int | float = 0


class _ExactTimes(Struct, gc=False):
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)


class Header(Struct):
    """What stands before and after the events; anything may be missing or of another type."""

    deviceProperties: Any = None
    distributedInfo: Any = None
    host_name: Any = None
    with_stack: Any = None
    record_shapes: Any = None
    profile_memory: Any = None


@dataclass(slots=True)
class Troubles:
    """What went wrong while decoding, counted; the first place of each kind by byte."""

    repaired: int = 0  # runs that were no valid JSON and were read after a repair
    unreadable: int = 0  # events
    first_unreadable: tuple[int, str] | None = None

    def skip(self, offset: int, reason: str) -> None:
        self.unreadable += 1
        if self.first_unreadable is None:
            self.first_unreadable = (offset, reason)


class Decoder:
    """Decodes runs of events; keeps count of its troubles. `types` are the types of the known categories."""

    def __init__(self) -> None:
        self.types = types_of_categories()
        self._events = Json(list[any_of(self.types)])  # type: ignore[misc]
        self._kinds = Json(list[_Kind])
        self._times = Json(list[_ExactTimes])
        self._of_type = {kind: Json(list[kind]) for kind in (*self.types.values(), Instant)}  # type: ignore[valid-type]
        self.troubles = Troubles()

    def events(self, text: bytes | memoryview, offset: int) -> list[Any] | None:
        """The events of a run in brackets; `offset` is where it is in the file.

        None if this is no run of whole events, whatever is repaired.
        """
        try:
            return self._typed(text)
        except _UNREADABLE:
            pass
        raw = _raw_events(text)
        if raw is None:
            raw = _raw_events(repair(bytes(text)))
            if raw is None:
                return None
            self.troubles.repaired += 1
        return self._one_by_one([(offset, bytes(item)) for item in raw])

    def _typed(self, text: bytes | memoryview) -> list[Any]:
        """The events of a list, each of its category's type."""
        try:
            return self._exact(self._events.decode(text), text)
        except msgspec.ValidationError:
            return self._sorted(text)

    def _sorted(self, text: bytes | memoryview) -> list[Any]:
        """The same where events have categories of which nothing is known, or none: they are of no use."""
        places: dict[EventType, list[int]] = {}
        kinds = self._kinds.decode(text)
        for place, event in enumerate(kinds):
            found = self._type_of(event)
            if found is not None:
                places.setdefault(found, []).append(place)
        raw = msgspec.json.decode(text, type=list[msgspec.Raw])
        typed: list[Any] = []
        for found, mine in places.items():
            own = in_brackets(b",".join([raw[place] for place in mine]))
            typed += self._exact(self._of_type[found].decode(own), own)
        return typed + [Unused()] * (len(kinds) - len(typed))

    def _type_of(self, event: _Kind) -> EventType | None:
        if event.cat in TABLES and event.ph == "X":
            return self.types[event.cat]
        return Instant if event.name == MEMORY else None

    def salvaged(self, content: bytes, offset: int) -> list[Any]:
        """What can be read of a run that `events` refused."""
        pieces = _pieces(repair(content))
        return self._one_by_one([(offset + place, piece) for place, piece in pieces])

    def _exact(self, events: list[Any], text: bytes | memoryview) -> list[Any]:
        """The events, their times decoded once more where floats are too coarse for them."""
        last = next((event for event in reversed(events) if isinstance(event, Event)), None)
        if last is None or not isinstance(last.ts, float) or abs(last.ts) < _LARGEST_EXACT_US:
            return events
        for event, times in zip(events, self._times.decode(text), strict=True):
            if isinstance(event, Event):
                event.ts = times.ts  # type: ignore[assignment]
                event.dur = times.dur  # type: ignore[assignment]
        return events

    def _one_by_one(self, pieces: Sequence[tuple[int, bytes]]) -> list[Any]:
        """Every event that can be read; those that cannot are counted.

        By halves: what is good costs little more than it does in a good file.
        """
        no_objects = [piece for piece in pieces if not piece[1].lstrip().startswith(b"{")]
        if no_objects:
            for offset, _ in no_objects:
                self.troubles.skip(offset, "it is no object")
            pieces = [piece for piece in pieces if piece[1].lstrip().startswith(b"{")]
        if len(pieces) <= 1:
            return [event for piece in pieces for event in self._one(*piece)]
        text = in_brackets(b",".join([piece for _, piece in pieces]))
        try:
            return self._typed(text)
        except _UNREADABLE:
            middle = len(pieces) // 2
            return self._one_by_one(pieces[:middle]) + self._one_by_one(pieces[middle:])

    def _one(self, offset: int, piece: bytes) -> list[Any]:
        for text, repairs in ((piece, 0), (repair(piece), 1)):
            try:
                events = self._typed(in_brackets(text))
            except _UNREADABLE as error:
                reason = str(error)
            else:
                self.troubles.repaired += repairs
                return events
        self.troubles.skip(offset, reason)
        return []


def _raw_events(text: bytes | memoryview) -> list[msgspec.Raw] | None:
    """The text of each event; None if this is no valid JSON."""
    try:
        return msgspec.json.decode(text, type=list[msgspec.Raw])
    except _UNREADABLE:
        return None


def _pieces(text: bytes) -> list[tuple[int, bytes]]:
    """What lies between two events, by the look of it, in a text that is no valid JSON."""
    found = []
    start = 0
    for boundary in _BETWEEN.finditer(text):
        found.append((start, text[start : boundary.start() + 1]))
        start = boundary.end()
    last = text[start:].rstrip(b" \t\r\n]")
    if last.strip(b" \t\r\n,"):
        found.append((start, last))
    return found


def repair(text: bytes) -> bytes:
    """JSON as profilers wrongly write it, made valid.

    Kineto writes raw control characters inside names (pytorch/pytorch#130622), and `nan` or `inf`
    where a division has no result.
    """
    text = text.translate(_SPACES_FOR_CONTROLS)
    text = _NOT_A_NUMBER.sub(rb"\1null", text)
    text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode("utf-8")
    return text


def header(content: bytes) -> Header:
    """The file's own description, from what stands around its events; empty where unreadable."""
    for text in (content, repair(content)):
        try:
            return msgspec.json.decode(text, type=Header)
        except _UNREADABLE:
            continue
    return Header()


_MOST_LISTS = 64


def end_of_list(text: bytes) -> int | None:
    """Where the list of events ends in the last part of a whole file; None if it does not.

    What follows it are a few fields, some with lists of their own: it is the last "]" with
    whole events before it and a whole object after it.
    """
    place, is_sure = _list_end(text)
    if is_sure:
        return place
    repaired = repair(text)
    place, _ = _list_end(repaired)
    # In the text as it was: a repair may have changed its length before the list's end.
    return None if place is None else max(0, len(text) - (len(repaired) - place))


def _list_end(text: bytes) -> tuple[int | None, bool]:
    """The likely end, and whether what is before it is whole as well."""
    likely, end = None, len(text)
    for _ in range(_MOST_LISTS):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            break
        if not is_json(b'{"": [' + text[end:]):
            continue
        if is_json(b"[" + text[:end] + b"]"):
            return end, True
        likely = end if likely is None else likely
    return likely, False


def is_json(text: bytes) -> bool:
    """Whether the whole text is one JSON value."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
