"""A Trace -> notes that show, in a copy of it, why the busiest device waits in the steps that count."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.trace.annotations import Anchor, Note, anchor_in
from graphdoctor.trace.arrays import Trace
from graphdoctor.trace.explain.activity import activity
from graphdoctor.trace.explain.gaps import Gaps, gaps
from graphdoctor.trace.explain.lanes import busiest_device
from graphdoctor.trace.explain.longest import longest_gaps, longest_places
from graphdoctor.trace.nesting import NONE
from graphdoctor.trace.steps import find_steps
from graphdoctor.values.trace import Gap

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
    return Note(
        track=TRACK,
        name=_CAUSES[max(parts, key=parts.__getitem__)],
        start_ns=int(found.start_ns[place]),
        end_ns=int(found.end_ns[place]),
        details=(*_times(parts), *_where(gap)),
        anchors=anchors,
    )


def _times(parts: dict[str, int]) -> Iterator[tuple[str, str]]:
    for cause, length_ns in parts.items():
        if length_ns:
            yield _CAUSES[cause], f"{length_ns / 1e3:.3f} us"


def _where(gap: Gap) -> Iterator[tuple[str, str]]:
    place = gap.location
    for name, text in (
        ("ended by", gap.kernel),
        ("operator", gap.operator),
        ("launched by", gap.launch),
        ("waited in", gap.sync),
        ("the host was in", gap.doing),
        ("function", f"{place.file}:{place.line} {place.function}" if place is not None else ""),
    ):
        if text:
            yield name, text
