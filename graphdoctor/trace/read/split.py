"""Split a trace file, block by block, into its header, runs of events, and the rest at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from graphdoctor.trace.arrays import Ints, Mask
from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import what_it_is

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}([ \t\r\n]*),[ \t\r\n]*\{")
_NO_SPACE = re.compile(rb"[^ \t\r\n]")
_BOM = b"\xef\xbb\xbf"
DATABASE = b"SQLite format 3\x00"
_ROCPROF = b'"rocprofiler-sdk-tool"'
_LONGEST = 256 << 20  # of a header, or from one event's end to the next
_MOST_SPACE = 1 << 16  # between two events, if it lies across two blocks


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the file. "events" ends between two objects, mostly events; "end" is all the rest.

    `text` holds until the next part is asked for; that of "events" stands in brackets, a list of JSON.
    `offset` counts bytes from the start of the (unpacked) file. `is_list`: the file is a bare list.
    """

    kind: Literal["header", "events", "end"]
    text: bytes | memoryview
    offset: int
    is_list: bool = False

    @property
    def content(self) -> bytes:
        """As it stands in the file."""
        return bytes(self.text[1:-1]) if self.kind == "events" else bytes(self.text)


def in_brackets(content: bytes) -> bytes:
    """Some events as a list."""
    return b"".join((b"[", content, b"]"))


def split(blocks: Iterable[bytes], name: str) -> Iterator[Part]:
    """Cut between two objects near every block's end, whatever keys they begin with.

    An object inside of an event looks the same, so a reader has to ask `structure` where a part
    makes no sense. Raises UsageError where there are no events.
    """
    source = iter(blocks)
    begun, position, is_list = _header(source, name)
    if not is_list:
        yield Part("header", bytes(begun[:position]), 0)
    rest, offset, searched = _Rest(begun[position:]), position, 0
    del begun
    for block in source:
        cut = _last_boundary(rest, searched)
        if cut is not None:
            yield Part("events", rest.in_brackets(cut[0]), offset, is_list)
            offset += cut[1]
            rest.drop(cut[1])
        elif len(rest) > _LONGEST:
            raise UsageError(
                f"{name} has no end of an event from byte {offset:,} on for {len(rest):,} bytes, so it"
                " is no torch.profiler trace, or it is damaged."
            )
        searched = max(0, len(rest) - _MOST_SPACE)
        rest.add(block)
    yield Part("end", bytes(rest.view()), offset, is_list)


class _Rest:
    """What was read and not yet handed on, in one buffer: fresh memory for each part costs as much as reading it."""

    def __init__(self, content: bytearray) -> None:
        self._buffer = bytearray(b"[") + content
        self._end = len(self._buffer)

    def __len__(self) -> int:
        return self._end - 1

    def view(self, begin: int = 0) -> memoryview:
        return memoryview(self._buffer)[1 + begin : self._end]

    def add(self, block: bytes) -> None:
        end = self._end + len(block)
        if end > len(self._buffer):
            wider = bytearray(end + end // 2)
            memoryview(wider)[: self._end] = memoryview(self._buffer)[: self._end]
            self._buffer = wider
        # Through a view: a bytearray would make a bytearray of the block first.
        memoryview(self._buffer)[self._end : end] = block
        self._end = end

    def in_brackets(self, length: int) -> memoryview:
        """So much from the beginning; a bracket takes the place of the comma that follows, or of space."""
        self._buffer[1 + length] = ord("]")
        return memoryview(self._buffer)[: length + 2]

    def drop(self, length: int) -> None:
        kept = bytes(self.view(length))
        self._end = 1 + len(kept)
        self._buffer[1 : self._end] = kept


def _header(source: Iterator[bytes], name: str) -> tuple[bytearray, int, bool]:
    """What was read until the events begin, the place where they begin, and if it is a bare list."""
    content = bytearray()
    searched = begin = 0
    for block in source:
        content += block
        begin = _skip_space(content, begin)
        if begin == len(content):
            continue
        if content[begin : begin + 1] == b"[":
            return content, begin + 1, True
        if content[begin : begin + 1] != b"{":
            if content.startswith(DATABASE):
                raise UsageError(
                    f"{name} is a database that is packed or comes through a pipe: give the unpacked file itself."
                )
            raise UsageError(
                f"{name} is not a torch.profiler trace: it begins with {bytes(content[begin : begin + 1])!r} at"
                f" byte {begin}, expected a JSON object or list."
            )
        found = _START.search(content, max(0, searched - _MOST_SPACE))
        if found:
            return content, found.end(), False
        searched = len(content)
        if searched > _LONGEST:
            break
    if _ROCPROF in content[:_MOST_SPACE]:
        raise UsageError(
            f"{name} is a profile of rocprofv3, which has no operators and no lines of the program: record the step"
            " with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), on CUDA and on"
            " ROCm, and save it with export_chrome_trace()."
        )
    if begin == len(content):
        raise UsageError(f"The trace {name} is empty: {len(content)} bytes.")
    if known := what_it_is(bytes(content), name=name):
        raise UsageError(known)
    raise UsageError(
        f'{name} has no "traceEvents" in its {len(content):,} bytes, so it is no torch.profiler'
        " trace, or it is cut short; export it again with export_chrome_trace()."
    )


def _skip_space(content: bytearray, begin: int) -> int:
    if begin == 0 and content.startswith(_BOM):
        begin = len(_BOM)
    found = _NO_SPACE.search(content, begin)
    return found.start() if found else len(content)


def _last_boundary(rest: _Rest, searched: int) -> tuple[int, int] | None:
    """Where the last but one object ends, and where the one after it begins."""
    reach = 1 << 12
    while True:
        start = max(searched, len(rest) - reach)
        last = None
        for last in _BETWEEN.finditer(rest.view(start)):  # noqa: B007
            pass
        if last is not None:
            return start + last.start() + 1, start + last.end() - 1
        if start == searched:
            return None
        reach *= 8


class Structure(NamedTuple):
    """Of a text that begins between two events: where its last whole event ends, and the list itself."""

    last_event: int
    list_end: int | None


_CLASSES = np.zeros(256, np.uint8)
_CLASSES[[ord('"'), ord("\\"), *b"{[", *b"}]"]] = (1, 2, 3, 3, 4, 4)


def structure(text: bytes) -> Structure:
    """Read nothing but brackets and quotes; takes a tenth of a second for 10 MB."""
    data = np.frombuffer(text, np.uint8)
    classes = _CLASSES[data]
    places = np.flatnonzero(classes)
    kind = classes[places]
    quotes = places[kind == 1]
    if (kind == 2).any():
        quotes = quotes[~_is_escaped(places[kind == 2], quotes)]
    brackets = places[kind >= 3]
    brackets = brackets[np.searchsorted(quotes, brackets) % 2 == 0]
    depth = np.cumsum(np.where(classes[brackets] == 3, 1, -1))
    outside = np.flatnonzero(depth < 0)
    list_end = int(brackets[outside[0]]) if len(outside) else None
    inner = brackets[: outside[0]] if len(outside) else brackets
    ends = inner[(depth[: len(inner)] == 0) & (data[inner] == ord("}"))]
    return Structure(int(ends[-1]) + 1 if len(ends) else 0, list_end)


def _is_escaped(backslashes: Ints, quotes: Ints) -> Mask:
    """Which quotes have an odd number of backslashes right before them."""
    begins = np.append(True, np.diff(backslashes) > 1)
    run = np.arange(len(backslashes)) - np.maximum.accumulate(
        np.where(begins, np.arange(len(backslashes)), 0)
    )
    before = np.minimum(np.searchsorted(backslashes, quotes - 1), len(backslashes) - 1)
    found: Mask = (backslashes[before] == quotes - 1) & (run[before] % 2 == 0)
    return found
