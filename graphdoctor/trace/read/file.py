"""A Chrome trace file of torch.profiler (plain or gzip) in, a Trace out."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from graphdoctor.trace.arrays import About, Trace
from graphdoctor.trace.read import blocks
from graphdoctor.trace.read.blocks import CutShort
from graphdoctor.trace.read.columns import Columns
from graphdoctor.trace.read.decode import Decoder, Header, header, repair
from graphdoctor.trace.read.split import Part, split
from graphdoctor.values.errors import UsageError

_MOST_LISTS = 64
_MOST_HELD = 8  # blocks that are kept until they make a run of whole events
_EXPORT_AGAIN = "export it again with torch.profiler's export_chrome_trace()"


def read_trace(path: Path, *, shapes: bool = False) -> Trace:
    """Read one trace file, what is damaged as far as it goes.

    `shapes`: also keep what was recorded of the operators' arguments. Raises UsageError when the
    file is missing, is something else, or has nothing that can be read.
    """
    return _read(blocks.blocks(path), str(path), shapes=shapes)


def parse_trace(content: bytes, *, name: str = "trace", shapes: bool = False) -> Trace:
    """The same for a trace in memory, not packed; `name` is what errors call it."""
    return _read([content], name, shapes=shapes)


def _read(source: Iterable[bytes], name: str, *, shapes: bool) -> Trace:
    reader = _Reader(name, shapes=shapes)
    with _collector_paused():
        for part in split(reader.watched(source), name):
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

    def __init__(self, name: str, *, shapes: bool) -> None:
        self._name = name
        self._shapes = shapes
        self._decoder = Decoder(shapes=shapes)
        self._columns = Columns()
        self._headers: list[Header] = []
        self._problems: list[str] = []
        self._held: Part | None = None

    def watched(self, source: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks, up to where the packed file breaks off."""
        try:
            yield from source
        except CutShort as error:
            self._problems.append(f"The trace {self._name} is cut short: {error}.")

    def take(self, part: Part) -> None:
        if part.kind == "header":
            self._headers.append(header(part.content + b"]}"))
            return
        if self._held is not None:
            part = replace(
                part, content=self._held.content + b"," + part.content, offset=self._held.offset
            )
            self._held = None
        is_end = part.kind == "end"
        content = self._without_trailer(part) if is_end else part.content
        events = self._decoder.events(content, part.offset)
        is_small = len(content) < _MOST_HELD * blocks.BLOCK_BYTES
        if events is None and not is_end and is_small and self._decoder.is_unfinished():
            self._held = part  # it was cut inside of an event
            return
        if events is None:
            events = self._decoder.salvaged(part.offset)
        self._columns.add(events, shapes=self._shapes)

    def _without_trailer(self, part: Part) -> bytes:
        """The last events; what follows them is kept as a second header, if the file is whole."""
        text = part.content.rstrip()
        if part.is_list:
            if text.endswith(b"]"):
                return text[:-1]
            self._problems.append(_not_whole(self._name, part))
            return text.rstrip(b" \t\r\n,")
        end = _end_of_list(text)
        if end is None:
            self._problems.append(_not_whole(self._name, part))
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
        operators, shapes = columns.operators()
        return Trace(
            about=_about(self._headers),
            names=tuple(map(str, columns.names)),
            threads=columns.thread_labels(),
            devices=tuple(map(str, columns.devices)),
            streams=tuple(map(str, columns.streams)),
            device_events=columns.device_events(),
            calls=columns.calls(),
            operators=operators,
            frames=columns.spans("frames"),
            annotations=columns.spans("annotations"),
            overheads=columns.spans("overheads"),
            shapes=shapes,
            events=columns.events,
            warnings=tuple(self._warnings()),
        )

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


def _not_whole(name: str, part: Part) -> str:
    total = part.offset + len(part.content)
    return f"The trace {name} is cut short: its events do not end, at byte {total:,}."


def _end_of_list(text: bytes) -> int | None:
    """Where the list of events ends in the last part of a whole file; None if it does not.

    What follows it are a few fields, some with lists of their own: it is the last "]" with
    whole events before it and a whole object after it.
    """
    place, is_sure = _list_end(text)
    if is_sure:
        return place
    repaired = repair(text)
    place, _ = _list_end(repaired)
    return None if place is None else _same_place(text, repaired, place)


def _list_end(text: bytes) -> tuple[int | None, bool]:
    """The likely end, and whether what is before it is whole as well."""
    likely, end = None, len(text)
    for _ in range(_MOST_LISTS):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            break
        if not _is_json(b'{"": [' + text[end:]):
            continue
        if _is_json(b"[" + text[:end] + b"]"):
            return end, True
        likely = end if likely is None else likely
    return likely, False


def _same_place(text: bytes, repaired: bytes, end: int) -> int:
    """The place in the text as it was; a repair may have changed its length before the list's end."""
    return max(0, len(text) - (len(repaired) - end))


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


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
