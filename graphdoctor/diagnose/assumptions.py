"""A recording on shapes only -> what was assumed in it, and where that ended it."""

from __future__ import annotations

import linecache

from graphdoctor.values.figures import shortened
from graphdoctor.values.finding import Assumption
from graphdoctor.values.host_events import AssumedValue, CutShort
from graphdoctor.values.locations import Location, with_place
from graphdoctor.values.recording import Recording


def assumptions(recording: Recording) -> tuple[Assumption, ...]:
    """What values were assumed, once for each place and value, in the order of the step."""
    told = (
        Assumption(event.value, event.name, event.location, _code(event.location))
        for iteration in recording.captured
        for event in iteration.events_of(AssumedValue)
    )
    return tuple(dict.fromkeys(told))


def cut_short(recording: Recording) -> tuple[str, ...]:
    """Where the step failed with what was assumed: nothing is known of what comes after."""
    found = {
        f"The step was followed only to where it fails with what was assumed"
        f" ({with_place(event.error, event.location)}): what comes after that was not seen, and no"
        " launch or time of it is counted."
        for iteration in recording.captured
        for event in iteration.events_of(CutShort)
    }
    return tuple(sorted(found))


def _code(place: Location | None) -> str:
    line = linecache.getline(place.file, place.line).strip() if place is not None else ""
    return shortened(line)
