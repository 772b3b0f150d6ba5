"""A step that takes another path while it is captured -> one sentence about what agreement of the two proves."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.values.locations import file_line
from graphdoctor.values.recording import Op, Recording


def about_two_paths(recording: Recording) -> Iterator[str]:
    """Eager issues other operators than a capture: that they compute the same is seen on the inputs tried alone."""
    if not recording.eager or not recording.captured:
        return
    eager, captured = recording.eager[-1].ops, recording.captured[-1].ops
    if [op.name for op in eager] == [op.name for op in captured]:
        return
    first = next((b for a, b in zip(eager, captured, strict=False) if a.name != b.name), None)
    where = f" (first {_told(first)})" if first is not None else ""
    yield (
        f"While it is captured, the step issues other operators than in eager{where}: replays follow that path,"
        " whose agreement with eager's is known of no inputs but those tried."
    )


def _told(op: Op) -> str:
    where = f", {file_line(op.location)}" if op.location is not None else ""
    return f"{op.name}{where}"
