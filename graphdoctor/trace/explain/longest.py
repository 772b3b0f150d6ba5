"""A Trace and its gaps -> the longest of them, each with what explains it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdoctor.trace.arrays import Ints, Trace
from graphdoctor.trace.explain.activity import Activity
from graphdoctor.trace.explain.gap_causes import names_of
from graphdoctor.trace.explain.gaps import Gaps
from graphdoctor.trace.explain.hosts import location, user_functions
from graphdoctor.trace.join import operator_of
from graphdoctor.trace.nesting import NONE
from graphdoctor.trace.windows import Window, inside
from graphdoctor.values.trace import Gap


def longest_gaps(
    trace: Trace, found: Gaps, windows: Sequence[Window], most: int, acted: Activity
) -> tuple[Gap, ...]:
    """The longest gaps within the windows, the longest first."""
    places = longest_places(found, windows, most)
    begin = windows[0][0] if windows else 0
    lines = _lines(trace, found, places)
    did = names_of(trace, acted, places)
    return tuple(
        _gap(trace, found, place, line, begin, doing)
        for place, line, doing in zip(places.tolist(), lines.tolist(), did, strict=True)
    )


def longest_places(found: Gaps, windows: Sequence[Window], most: int) -> Ints:
    """Where among the gaps those are, in the same order."""
    places = np.flatnonzero(inside(found.end_ns, windows, closed="right"))
    length = found.end_ns[places] - found.start_ns[places]
    longest: Ints = places[np.argsort(-length, kind="stable")[:most]]
    return longest


def _lines(trace: Trace, found: Gaps, places: Ints) -> Ints:
    """The name of the user's innermost frame around the wait, else around the launch, or -1."""
    call = np.where(found.wait[places] != NONE, found.wait[places], found.call[places])
    names = np.full(len(places), NONE, np.int64)
    names[call != NONE] = user_functions(trace, trace.calls.take(call[call != NONE]))
    return names


def _gap(
    trace: Trace, found: Gaps, place: int, line: int, begin: int, doing: tuple[str, str]
) -> Gap:
    call, wait = int(found.call[place]), int(found.wait[place])
    operator = int(operator_of(trace)[call]) if call != NONE else NONE
    names = trace.names
    return Gap(
        at_ns=int(found.start_ns[place]) - begin,
        length_ns=int(found.end_ns[place] - found.start_ns[place]),
        host_ns=int(found.host_ns[place]),
        launch_path_ns=int(found.launch_path_ns[place]),
        sync_wait_ns=int(found.sync_wait_ns[place]),
        device_gap_ns=int(found.device_gap_ns[place]),
        unattributed_ns=int(found.unattributed_ns[place]),
        kernel=names[trace.device_events.name[found.event[place]]],
        launch=names[trace.calls.name[call]] if call != NONE else "",
        operator=names[trace.operators.name[operator]] if operator != NONE else "",
        sync=names[trace.calls.name[wait]] if wait != NONE else "",
        location=location(trace.text(line)),
        doing=doing[0],
        doing_at=location(doing[1]),
    )
