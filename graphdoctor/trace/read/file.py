"""Read a trace file of torch.profiler, plain or packed, or of Nsight Systems."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from graphdoctor.trace.api import is_step_mark
from graphdoctor.trace.arrays import (
    About,
    Calls,
    DeviceEvents,
    Exchanges,
    MemoryEvents,
    Spans,
    Trace,
    together,
)
from graphdoctor.trace.read import blocks
from graphdoctor.trace.read.blocks import RemotePath, TracePath
from graphdoctor.trace.read.columns import HOST_TABLES, Columns
from graphdoctor.trace.read.decode import Decoder, Header, end_of_list, header, is_json
from graphdoctor.trace.read.nsight import is_database, read_nsight
from graphdoctor.trace.read.split import Part, in_brackets, split, structure
from graphdoctor.values.errors import UsageError

_MOST_HELD = 16 << 20  # bytes that are kept until they make a whole event
_MOST_TRAILER = 16 << 20
_WORKING = 3  # bytes that explaining takes for each that is read
_REPORTS = (".nsys-rep", ".qdrep")
_EXPORT_AGAIN = "export it again with torch.profiler's export_chrome_trace()"


def read_trace(path: TracePath, *, most_bytes: int | None = None) -> Trace:
    """Read one trace file, what is damaged as far as it goes; "-" is standard input.

    `most_bytes` of memory that reading and explaining may take, as far as it grows with the events. Raises UsageError
    when the file is missing, is something else, takes more, or has nothing that can be read.
    """
    if path.name.endswith(_REPORTS):
        raise UsageError(
            f"{path} is a report of Nsight Systems, which only it can read: export it with `nsys export --type"
            " sqlite`, and explain what that writes."
        )
    if isinstance(path, RemotePath):
        if path.name.endswith(".sqlite"):
            raise UsageError(
                f"{path} is a database, which is read from a disk: copy it to this machine first."
            )
    elif is_database(path):
        return read_nsight(path, most_bytes)
    return _read(blocks.blocks(path), str(path), most_bytes=most_bytes)


def parse_trace(content: bytes, *, name: str = "trace") -> Trace:
    """The same for a trace in memory, not packed; `name` is what errors call it."""
    return _read([content], name)


def _read(source: Iterable[bytes], name: str, *, most_bytes: int | None = None) -> Trace:
    reader = _Reader(name, most_bytes=most_bytes)
    with _collector_paused():
        for part in split(blocks.until_cut(source, name, reader.cut), name):
            reader.take(part)
    return reader.trace()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A million small objects and no cycles: the collector would triple the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Reader:
    """Takes a file's parts in order and keeps what the trace is made of."""

    def __init__(self, name: str, *, most_bytes: int | None) -> None:
        self._name = name
        self._most_bytes = most_bytes
        self._decoder = Decoder()
        self._columns = Columns(self._decoder.types)
        self._headers: list[Header] = []
        self._problems: list[str] = []
        self._held: Part | None = None  # the beginning of an event
        self._trailer: bytes | None = None  # what follows the list of events, once it has ended
        self._is_cut = False

    def cut(self, reason: str) -> None:
        self._is_cut = True
        self._problems.append(f"The trace {self._name} is cut short: {reason}.")

    def take(self, part: Part) -> None:
        if part.kind == "header":
            self._headers.append(header(part.content + b"]}"))
        elif self._trailer is not None:
            self._follow(b"," + part.content)
        else:
            self._take_events(part)
        if part.kind == "end" and self._trailer is not None:
            self._headers.append(header(b'{"traceEvents": [' + self._trailer))
        taken, events = self._columns.nbytes * _WORKING, f"after {self._columns.events:,}"
        blocks.check_memory(f"trace {self._name}", self._most_bytes, taken, events)

    def _follow(self, content: bytes) -> None:
        if self._trailer is not None and len(self._trailer) + len(content) <= _MOST_TRAILER:
            self._trailer += content

    def _take_events(self, part: Part) -> None:
        if self._held is not None:
            whole = self._held.content + b"," + part.content
            is_end = part.kind == "end"
            part = replace(
                part, text=whole if is_end else in_brackets(whole), offset=self._held.offset
            )
            self._held = None
        if part.kind == "end":
            content = self._without_trailer(part)
            events = self._decoder.events(in_brackets(content), part.offset)
        else:
            events = self._decoder.events(part.text, part.offset)
            if events is None:
                content = part.content
                events = self._before_the_cut(part, content)
        if events is None:
            events = self._decoder.salvaged(content, part.offset)
        self._columns.add(events)

    def _before_the_cut(self, part: Part, content: bytes) -> list[Any] | None:
        """The events of a part that was cut inside of one, or behind the last; None if it is damaged."""
        found = structure(content)
        if found.list_end is not None:
            before = in_brackets(content[: found.list_end])
            events = self._decoder.events(before, part.offset)
            if events is not None:
                self._trailer = b""
                self._follow(content[found.list_end :])
            return events
        rest = content[found.last_event :].lstrip(b" \t\r\n,")
        if not rest or len(rest) > _MOST_HELD:
            return None
        before = in_brackets(content[: found.last_event])
        events = self._decoder.events(before, part.offset)
        if events is not None:
            offset = part.offset + found.last_event
            self._held = replace(part, text=in_brackets(rest), offset=offset)
        return events

    def _without_trailer(self, part: Part) -> bytes:
        """The last events; what follows them is kept as a second header, if the file is whole."""
        text = part.content.rstrip()
        if part.is_list:
            if text.endswith(b"]"):
                return text[:-1]
            self.cut(_not_whole(part))
            return text.rstrip(b" \t\r\n,")
        exact = structure(text).list_end
        is_whole = exact is not None and is_json(b'{"": [' + text[exact:])
        end = exact if is_whole else end_of_list(text)
        if end is None:
            self.cut(_not_whole(part))
            return text
        self._headers.append(header(b'{"traceEvents": [' + text[end:]))
        return text[:end]

    def trace(self) -> Trace:
        columns, troubles = self._columns, self._decoder.troubles
        if not columns.events:
            reason = f"; the first at byte {troubles.first_unreadable[0]:,}: " + (
                troubles.first_unreadable[1]
            ) if troubles.first_unreadable else ""  # fmt: skip
            problem = (
                self._problems[0] if self._problems else f"{self._name} has no events{reason}."
            )
            raise UsageError(f"{problem} Nothing in it can be read; {_EXPORT_AGAIN}.")
        read = Trace(
            about=_about(self._headers),
            names=columns.name_texts(),
            threads=columns.thread_labels(),
            devices=tuple(map(str, columns.devices.texts)),
            streams=tuple(map(str, columns.streams.texts)),
            device_events=columns.table("device", DeviceEvents),
            calls=columns.table("calls", Calls),
            exchanges=columns.table("exchanges", Exchanges),
            messages=tuple(columns.known_messages()),
            memory=columns.table("memory", MemoryEvents),
            **{table: columns.table(table, Spans) for table in HOST_TABLES},
            events=columns.events,
            is_cut=self._is_cut,
            warnings=tuple(self._warnings()),
        )
        return _with_marks_apart(read)

    def _warnings(self) -> Iterator[str]:
        yield from self._problems
        columns, troubles = self._columns, self._decoder.troubles
        if troubles.repaired:
            yield "The file is not valid JSON (raw control characters, nan or inf); it was repaired."
        if troubles.first_unreadable is not None:
            offset, reason = troubles.first_unreadable
            yield (
                f"{troubles.unreadable:,} of {troubles.unreadable + columns.events:,} events could"
                f" not be read, the first near byte {offset:,}: {reason}."
            )
        if columns.backwards:
            yield f"{columns.backwards:,} events have a negative duration; it was taken as 0."
        if columns.out_of_range:
            yield f"{columns.out_of_range:,} times are beyond any clock; they were taken as 0."


def _with_marks_apart(trace: Trace) -> Trace:
    """The marks of steps are annotations: in 2021 they were operators."""
    operators, annotations = trace.operators, trace.annotations
    is_mark = trace.named(operators, is_step_mark)
    if not is_mark.any():
        return trace
    return replace(
        trace,
        operators=operators.take(~is_mark),
        annotations=together([annotations, operators.take(is_mark)]),
    )


def _not_whole(part: Part) -> str:
    return f"its events do not end, at byte {part.offset + len(part.content):,}"


def _about(headers: list[Header]) -> About:
    """What header and trailer say, taken together; the first that says something counts."""

    def first(field: str) -> Any:
        values = (getattr(item, field) for item in headers)
        return next((value for value in values if value is not None), None)

    devices = first("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    names = [item.get("name") for item in listed if isinstance(item, dict)]
    distributed = first("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    host = first("host_name")
    return About(
        device_names=tuple(name for name in names if isinstance(name, str)),
        worker=f"rank {rank}" if isinstance(rank, int) else host if isinstance(host, str) else "",
        with_stack=bool(first("with_stack")),
        record_shapes=bool(first("record_shapes")),
        profile_memory=bool(first("profile_memory")),
    )
