"""A call that sets the seed in a step -> how to draw the numbers that it is there for."""

from __future__ import annotations

from graphdoctor.operators import draws
from graphdoctor.values.host_events import RngState
from graphdoctor.values.recording import Iteration, Recording

DRAW_ONCE = "Draw the numbers that must repeat once, before the step, and keep them in a tensor."
_DRAW_FIRST = (
    "In each step, draw the numbers that must repeat once, keep them in a tensor, and use that tensor"
    " at each of the {} places that draw after the same seed."
)


def first_draw(event: RngState, iteration: Iteration) -> str:
    """The first operator on the device that draws after the call and before the next seed; "" if none does."""
    later = (each.op_index for each in _seeding(iteration) if each.op_index > event.op_index)
    for op in iteration.ops[event.op_index : next(later, None)]:
        if op.is_cuda and draws(op):
            return op.name.rpartition(".")[0]
    return ""


def for_repeated(event: RngState, iteration: Iteration, recording: Recording) -> str:
    """For a seed that repeats in each step, or within the step; "" for one that does neither."""
    if event.seed is None:
        return ""
    seeds = [
        {each.seed for each in other.events_of(RngState) if each.location == event.location}
        for other in recording.captured
    ]
    if len(seeds) > 1 and all(each == {event.seed} for each in seeds):
        return DRAW_ONCE
    places = [
        each
        for each in _seeding(iteration)
        if each.seed == event.seed and first_draw(each, iteration)
    ]
    return _DRAW_FIRST.format(len(places)) if len(places) > 1 else ""


def _seeding(iteration: Iteration) -> list[RngState]:
    return [each for each in iteration.events_of(RngState) if each.seed is not None]
