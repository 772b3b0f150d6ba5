"""A recording -> the remark that attention drops elements by another kernel while it is captured.

On the CPU one kernel drops them, with a mask or without: there the twins have shown that both paths are the
same function. On a GPU each kernel uses random numbers in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.words import place_words
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import bracketed
from graphdoctor.values.recording import HostEvent, Iteration, Recording

_ADVICE = (
    "replays train as validly as eager, but not with its numbers. Where they are to be the same: where nothing"
    " is padded, pass no attention mask, or one with memory of its own (contiguous()), of four dimensions, which"
    " both paths keep."
)


def about_other_dropout(recording: Recording) -> Iterator[str]:
    """Of the first iteration that has it, its first call, and how many there are."""
    for eager, captured in zip(recording.eager, recording.captured, strict=False):
        attentions = (one.events_of("attention-dropout") for one in (eager, captured))
        calls = [
            (before, now)
            for before, now in zip(*attentions, strict=False)
            if before.name != now.name
        ]
        if calls:
            yield _told(*calls[0], captured, count=len(calls))
            return


def _told(before: HostEvent, now: HostEvent, captured: Iteration, *, count: int) -> str:
    # That the math kernel draws otherwise than the fused ones was seen on GPUs (two H200s, in float32).
    may = "takes" if "math attention" in (before.name, now.name) else "may take"
    calls = f" in {count_text(count, 'call')}" if count > 1 else ""
    return (
        f"Attention with dropout{bracketed(now.location)} has {now.detail} while it is captured, and {before.detail} in"
        f" eager{calls}{_asked_before(now, captured)}. A GPU {may} {now.name} instead of {before.name} then, which"
        f" drops other elements from the same seed: {_ADVICE}"
    )


def _asked_before(now: HostEvent, captured: Iteration) -> str:
    """A helper that does nothing but ask says less than the file that calls it."""
    asked = [
        event for event in captured.events_of("capture-query") if event.op_index <= now.op_index
    ]
    if not asked or asked[-1].location is None:
        return ""
    event = asked[-1]
    callers = (one for one in event.stack if one.file != asked[-1].location.file)
    place = place_words(next(callers, event.location), now.location)
    return f", since the code asks {event.name} ({place})" if place else ""
