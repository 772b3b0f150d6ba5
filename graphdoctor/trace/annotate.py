"""Write a copy of a trace with notes in it: why the GPU waits, or findings; without environment variables."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from graphdoctor.trace.arrays import Trace
from graphdoctor.trace.explain.gap_causes import activity, longest_gaps, longest_places
from graphdoctor.trace.explain.gaps import Gaps, busiest_device, gaps
from graphdoctor.trace.intervals import NONE
from graphdoctor.trace.read.blocks import CutShort, TracePath, blocks
from graphdoctor.trace.read.split import split, structure
from graphdoctor.trace.steps import find_steps
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible
from graphdoctor.values.trace import Gap

# Viewers put what begins with an event before it, and hold times as floats of microseconds.
_WITHIN_NS = 10


class Anchor(Struct, frozen=True, gc=False):
    """A moment on a host thread. `thread` is a place in the trace's list of threads."""

    thread: int
    at_ns: int


def anchor_in(thread: int, start_ns: int, end_ns: int) -> Anchor:
    """At the beginning of an event, and so far inside of it that a viewer takes it for the event's."""
    return Anchor(thread, start_ns + min(_WITHIN_NS, (end_ns - start_ns) // 2))


class Note(Struct, frozen=True):
    """A span on a named track. At each anchor stands an instant, and an arrow joins it to the span.

    `details` are what a viewer shows of the span when it is clicked.
    """

    track: str
    name: str
    start_ns: int
    end_ns: int
    details: tuple[tuple[str, str], ...] = ()
    anchors: tuple[Anchor, ...] = ()


PROCESS = "graphdoctor"  # no number: those of processes and devices are taken
_FIRST = -10  # above all processes of the trace
_LONGEST_TEXT = 2000
_BEGIN: dict[str, object] = {"ph": "s"}
_END: dict[str, object] = {"ph": "f", "bp": "e"}
# Beyond the correlation numbers that are the profiler's own; Perfetto reads text as hexadecimal only.
_FIRST_ARROW = 1 << 40


def annotate(
    source: TracePath, target: Path, notes: Sequence[Note], threads: Sequence[str]
) -> None:
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


def _content(source: TracePath, events: Sequence[str]) -> Iterator[bytes]:
    """The file, with the events at the head of its list: what follows them may be of any size."""
    added = ",\n  ".join(events).encode("ascii")
    is_first = True
    for part in split(blocks(source), str(source)):
        content = part.content
        if part.kind == "header":
            yield _without_environment(content, after=_CLOSING)
            continue
        if part.kind == "end" and (end := structure(content).list_end) is not None:
            content = content[:end] + _without_environment(content[end:], before=_OPENING)
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


_KEYS = frozenset({"env", "environ", "environment", "environment_variables", "env_vars"})
_MENTIONED = re.compile(rb'"env(iron|ironment|ironment_variables|_vars)?"\s*:', re.IGNORECASE)
_LEFT_OUT = "left out by graphdoctor"
_OPENING, _CLOSING = b'{"traceEvents":[', b"]}"


def _without_environment(content: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
    """A part of a file, which `before` and `after` make a whole; given back as it is where it tells no environment.

    What cannot be read cannot be told from a secret, and is left out whole.
    """
    if not _MENTIONED.search(content):
        return content
    try:
        found = msgspec.json.decode(before + content + after)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        found = {"traceEvents": []}
    return msgspec.json.encode(_without(found)).removeprefix(before).removesuffix(after)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _LEFT_OUT if key.lower() in _KEYS else _without(inner)
            for key, inner in value.items()
        }
    return [_without(inner) for inner in value] if isinstance(value, list) else value


TRACK = "why the GPU waits"
MOST_NOTES = 5000  # viewers grow slow with arrows; the longest gaps are what matters
_CAUSES = {
    "host": "the host is not there yet",
    "launch_path": "the launch is on its way",
    "sync_wait": "the host waited for the device",
    "device_gap": "the work was queued",
    "unattributed": "unknown: no launch in the trace",
}


def notes_of_gaps(trace: Trace, only_step: int | None = None) -> tuple[Note, ...]:
    """A span over each gap, named by what explains most of it, with an arrow to the launch that ended it."""
    device = busiest_device(trace)
    found = gaps(trace, device)
    windows = [step.window for step in find_steps(trace, device, only=only_step).counted]
    places = longest_places(found, windows, MOST_NOTES).tolist()
    acted = activity(trace, found, windows)
    explained = longest_gaps(trace, found, windows, MOST_NOTES, acted)
    notes = (_note(trace, found, *pair) for pair in zip(places, explained, strict=True))
    return tuple(sorted(notes, key=lambda note: note.start_ns))


def _note(trace: Trace, found: Gaps, place: int, gap: Gap) -> Note:
    parts = {cause: getattr(gap, f"{cause}_ns") for cause in _CAUSES}
    call = int(found.call[place])
    anchors: tuple[Anchor, ...] = ()
    if call != NONE:
        calls = trace.calls
        span = int(calls.start_ns[call]), int(calls.end_ns[call])
        anchors = (anchor_in(int(calls.thread[call]), *span),)
    place_text = ""
    if (where := gap.location) is not None:
        place_text = f"{where.file}:{where.line} {where.function}"
    details = (
        *((_CAUSES[cause], f"{ns / 1e3:.3f} us" if ns else "") for cause, ns in parts.items()),
        ("ended by", gap.kernel),
        ("operator", gap.operator),
        ("launched by", gap.launch),
        ("waited in", gap.sync),
        ("the host was in", gap.doing),
        ("function", place_text),
    )
    return Note(
        track=TRACK,
        name=_CAUSES[max(parts, key=parts.__getitem__)],
        start_ns=int(found.start_ns[place]),
        end_ns=int(found.end_ns[place]),
        details=tuple((name, text) for name, text in details if text),
        anchors=anchors,
    )
