"""Blocks of a trace file in; its header, runs of whole events and its trailer out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from graphdoctor.values.errors import UsageError

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\\x00-\x1f]{1,40}")')
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_LONGEST_HEADER = 256 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the file. "events" are whole events with commas between; "end" is all the rest.

    `offset` counts bytes from the start of the (unpacked) file. `is_list`: the file is a bare list.
    """

    kind: Literal["header", "events", "end"]
    content: bytes
    offset: int
    is_list: bool = False


def split(blocks: Iterable[bytes], name: str) -> Iterator[Part]:
    """Cut between two events near every block's end. Raises UsageError where there are no events."""
    source = iter(blocks)
    content, position, is_list = _header(source, name)
    if not is_list:
        yield Part("header", content[:position], 0)
    rest, offset = content[position:], position
    key = _FIRST_KEY.match(rest)
    # Events are told from objects inside of events by the key that they begin with.
    between = re.compile(rb"\}(\s*),\s*\{\s*" + re.escape(key[1])) if key else None
    for block in source:
        if between is not None:
            cut = _last_boundary(between, rest)
            if cut is not None:
                yield Part("events", rest[: cut[0]], offset, is_list)
                offset += cut[1]
                rest = rest[cut[1] :]
        rest += block
    yield Part("end", rest, offset, is_list)


def _header(source: Iterator[bytes], name: str) -> tuple[bytes, int, bool]:
    """What was read until the events begin, the place where they begin, and if it is a bare list."""
    content = b""
    searched = 0
    for block in source:
        content += block
        text = content.removeprefix(_BOM).lstrip(_SPACE)
        if not text:
            continue
        before = len(content) - len(text)
        if text[:1] == b"[":
            return content, before + 1, True
        if text[:1] != b"{":
            raise UsageError(
                f"{name} is not a torch.profiler trace: it begins with {text[:1]!r} at byte {before},"
                " expected a JSON object or list."
            )
        found = _START.search(content, max(0, searched - 64))
        if found:
            return content, found.end(), False
        searched = len(content)
        if searched > _LONGEST_HEADER:
            break
    if not content.strip():
        raise UsageError(f"The trace {name} is empty: {len(content)} bytes.")
    raise UsageError(
        f'{name} has no "traceEvents" in its {len(content):,} bytes, so it is no torch.profiler'
        " trace, or it is cut short; export it again with export_chrome_trace()."
    )


def _last_boundary(between: re.Pattern[bytes], text: bytes) -> tuple[int, int] | None:
    """Where the last but one event ends, and where the one after it begins."""
    reach = 1 << 14
    while True:
        start = max(0, len(text) - reach)
        last = None
        for last in between.finditer(text, start):  # noqa: B007
            pass
        if last is not None:
            return last.start() + 1, text.index(b"{", last.start() + 1)
        if start == 0:
            return None
        reach *= 8
