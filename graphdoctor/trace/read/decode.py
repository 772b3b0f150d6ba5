"""Runs of whole events as JSON text -> typed events; what cannot be read is counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from graphdoctor.trace.arrays import NO_CORRELATION

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


class Args(Struct, gc=False):
    """What every analysis needs of an event's arguments."""

    correlation: int | None = NO_CORRELATION
    device: int | str | None = None
    stream: int | str | None = None
    nbytes: int | float | str | None = field(default=None, name="bytes")
    graph: int | str | None = field(default=None, name="graph id")
    collective: Any = field(default=None, name="Collective name")
    elements: Any = field(default=None, name="In msg nelems")
    elements_out: Any = field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")
    block: Any = field(default=None, name="Bytes")
    allocated: Any = field(default=None, name="Total Allocated")
    reserved: Any = field(default=None, name="Total Reserved")
    memory_kind: Any = field(default=None, name="Device Type")
    memory_device: Any = field(default=None, name="Device Id")


class ArgsWithShapes(Args, gc=False):
    """The same with what the profiler recorded of an operator's arguments."""

    dims: tuple[Any, ...] | None = field(default=None, name="Input Dims")
    strides: tuple[Any, ...] | None = field(default=None, name="Input Strides")
    dtypes: tuple[Any, ...] | None = field(default=None, name="Input type")
    concrete: tuple[Any, ...] | None = field(default=None, name="Concrete Inputs")


A = TypeVar("A", Args, ArgsWithShapes)


class Event(Struct, Generic[A], gc=False):
    """One event of the file. Integers stay integers: a float would round them."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    ts: int | float = 0
    dur: int | float = 0
    pid: int | str | None = 0
    tid: int | str | None = 0
    args: A | None = None


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
    """Decodes runs of events; keeps count of its troubles."""

    def __init__(self, *, shapes: bool) -> None:
        event = Event[ArgsWithShapes] if shapes else Event[Args]
        self._events = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._times = msgspec.json.Decoder(list[_ExactTimes])
        self.troubles = Troubles()

    def events(self, content: bytes, offset: int) -> list[Event[Any]] | None:
        """The events of a run without its brackets; `offset` is where it is in the file.

        None if this is no run of whole events, whatever is repaired.
        """
        text = b"[" + content + b"]"
        try:
            return self._exact(self._events.decode(text), text)
        except _UNREADABLE:
            pass
        raw = _raw_events(text)
        if raw is None:
            raw = _raw_events(b"[" + repair(content) + b"]")
            if raw is None:
                return None
            self.troubles.repaired += 1
        return self._one_by_one([(offset, bytes(item)) for item in raw])

    def salvaged(self, content: bytes, offset: int) -> list[Event[Any]]:
        """What can be read of a run that `events` refused."""
        pieces = _pieces(repair(content))
        return self._one_by_one([(offset + place, piece) for place, piece in pieces])

    def _exact(self, events: list[Event[Any]], text: bytes) -> list[Event[Any]]:
        """The events, their times decoded once more where floats are too coarse for them."""
        if not events or not isinstance(events[-1].ts, float):
            return events
        if abs(events[-1].ts) < _LARGEST_EXACT_US:
            return events
        for event, times in zip(events, self._times.decode(text), strict=True):
            event.ts = times.ts  # type: ignore[assignment]
            event.dur = times.dur  # type: ignore[assignment]
        return events

    def _one_by_one(self, pieces: Sequence[tuple[int, bytes]]) -> list[Event[Any]]:
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
        text = b"[" + b",".join(piece for _, piece in pieces) + b"]"
        try:
            return self._exact(self._events.decode(text), text)
        except _UNREADABLE:
            middle = len(pieces) // 2
            return self._one_by_one(pieces[:middle]) + self._one_by_one(pieces[middle:])

    def _one(self, offset: int, piece: bytes) -> list[Event[Any]]:
        for text, repairs in ((piece, 0), (repair(piece), 1)):
            try:
                events = self._exact(self._events.decode(b"[" + text + b"]"), b"[" + text + b"]")
            except _UNREADABLE as error:
                reason = str(error)
            else:
                self.troubles.repaired += repairs
                return events
        self.troubles.skip(offset, reason)
        return []


def _raw_events(text: bytes) -> list[msgspec.Raw] | None:
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
