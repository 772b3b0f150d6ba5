"""A trace file and notes -> a copy of the file that shows the notes as tracks, instants and arrows."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphdoctor.trace.annotations import Anchor, Note
from graphdoctor.trace.read.blocks import CutShort, blocks
from graphdoctor.trace.read.environment import header_without, trailer_without
from graphdoctor.trace.read.split import split, structure
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible

PROCESS = "graphdoctor"  # no number: those of processes and devices are taken
_FIRST = -10  # above all processes of the trace
_LONGEST_TEXT = 2000
_BEGIN: dict[str, object] = {"ph": "s"}
_END: dict[str, object] = {"ph": "f", "bp": "e"}
# Beyond the correlation numbers that are the profiler's own; Perfetto reads text as hexadecimal only.
_FIRST_ARROW = 1 << 40


def annotate(source: Path, target: Path, notes: Sequence[Note], threads: Sequence[str]) -> None:
    """Write a gzip copy of the trace with the notes before its own events, which stay as they are.

    Environment variables that a writer put beside the events are left out: copies are sent to others.

    `threads` is the trace's list of them. Needs memory for a few blocks and not for the file.
    Raises UsageError where the source is no whole trace or the target cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as part:
            name = Path(part.name)
        try:
            with gzip.open(name, "wb", compresslevel=6) as out:
                for content in _content(source, list(annotated_events(notes, threads))):
                    out.write(content)
            os.chmod(name, 0o644)
            os.replace(name, target)
        finally:
            name.unlink(missing_ok=True)
    except CutShort as error:
        raise UsageError(
            f"The trace {source} is cut short and cannot be annotated: {error}."
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def _content(source: Path, events: Sequence[str]) -> Iterator[bytes]:
    """The file, with the events at the head of its list: what follows them may be of any size."""
    added = ",\n  ".join(events).encode("ascii")
    is_first = True
    for part in split(blocks(source), str(source)):
        content = part.content
        if part.kind == "header":
            yield header_without(content)
            continue
        if part.kind == "end" and (end := structure(content).list_end) is not None:
            content = content[:end] + trailer_without(content[end:])
        if is_first:
            yield (b"[" if part.is_list else b"") + b"\n  " + added
            is_first = False
            has_events = content.lstrip()[:1] == b"{"
            yield b",\n  " if has_events and added else b""
        else:
            yield b","
        yield content


def annotated_events(notes: Sequence[Note], threads: Sequence[str]) -> Iterator[str]:
    """The notes as Chrome trace events in JSON: tracks by name, spans, instants, arrows."""
    tracks = {track: number for number, track in enumerate(dict.fromkeys(n.track for n in notes))}
    yield from _metadata(tracks)
    arrow = 0
    for note in notes:
        at: dict[str, object] = {"pid": PROCESS, "tid": tracks[note.track]}
        args = {key: _text(value) for key, value in note.details}
        name = _text(note.name)
        length = max(1, note.end_ns - note.start_ns)
        yield _event({"ph": "X", "name": name, **at, "args": args}, note.start_ns, length)
        for anchor in note.anchors:
            arrow += 1
            there = _thread(threads, anchor)
            yield _event({"ph": "i", "s": "t", "name": name, **there, "args": args}, anchor.at_ns)
            # Perfetto drops an arrow that ends before it begins.
            ends = sorted(
                ((note.start_ns, 0, at), (anchor.at_ns, 1, there)), key=lambda end: end[:2]
            )
            bound = {"id": _FIRST_ARROW + arrow, "name": "finding"}
            for phase, (at_ns, _, place) in zip((_BEGIN, _END), ends, strict=True):
                yield _event({**phase, **bound, **place}, at_ns)


def _metadata(tracks: dict[str, int]) -> Iterator[str]:
    head: dict[str, object] = {"ph": "M", "pid": PROCESS}
    if not tracks:
        return
    yield json.dumps({**head, "name": "process_name", "tid": 0, "args": {"name": PROCESS}})
    order = {"name": "process_sort_index", "tid": 0, "args": {"sort_index": _FIRST}}
    yield json.dumps({**head, **order})
    for track, number in tracks.items():
        named = {"name": "thread_name", "tid": number, "args": {"name": _text(track)}}
        yield json.dumps({**head, **named})
        place = {"name": "thread_sort_index", "tid": number, "args": {"sort_index": number}}
        yield json.dumps({**head, **place})


def _event(fields: dict[str, object], start_ns: int, length_ns: int | None = None) -> str:
    """Times are written digit by digit: a float of a clock's microseconds does not hold its ns."""
    text = json.dumps({"cat": PROCESS, **fields}, ensure_ascii=True)
    length = f', "dur": {_us(length_ns)}' if length_ns is not None else ""
    return f'{text[:-1]}, "ts": {_us(start_ns)}{length}}}'


def _us(value_ns: int) -> str:
    sign, value_ns = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    return f"{sign}{value_ns // 1000}.{value_ns % 1000:03d}"


def _thread(threads: Sequence[str], anchor: Anchor) -> dict[str, object]:
    """Process and thread as the file writes them: numbers, unless they are no numbers."""
    process, _, thread = threads[anchor.thread].partition("/")
    return {"pid": _number(process), "tid": _number(thread)}


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _text(text: str) -> str:
    return visible(text[:_LONGEST_TEXT])
