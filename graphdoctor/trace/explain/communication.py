"""Sum up the collectives of a trace by kind, size and group, and the part that nothing else overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from graphdoctor.trace.api import is_collective_mark
from graphdoctor.trace.arrays import KINDS, Ints, Mask, Message, Spans, Trace
from graphdoctor.trace.intervals import NONE, covered_ns_of, innermost, nest, union, value_at
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.kernel_families import (
    COMMUNICATION,
    SEND_RECV,
    collective_of,
    is_communication,
)
from graphdoctor.values.trace_work import CollectiveCost, Communication


def are_collectives(trace: Trace, rows: Ints) -> Mask:
    """Which of these device events are kernels of collectives."""
    events = trace.device_events
    speaks = trace.named(events, is_communication) | (events.message != NONE)
    found: Mask = (speaks & (events.kind == KINDS.index("kernel")))[rows]
    return found


def messages_of(trace: Trace, rows: Ints) -> list[Message]:
    """What each of these collectives moves: by its own arguments, else by those of the call that
    launched it, else no more than the names of its kernel and of torch's annotation say."""
    events = trace.device_events
    around = _around_launches(trace, rows, trace.exchanges)
    said = value_at(trace.exchanges.message, around)
    place = np.where(events.message[rows] == NONE, said, events.message[rows])
    marks = trace.annotations.take(trace.named(trace.annotations, is_collective_mark))
    mark = value_at(marks.name, _around_launches(trace, rows, marks))
    said_by = list(zip(place.tolist(), events.name[rows].tolist(), mark.tolist(), strict=True))
    different = {columns: _message(trace, *columns) for columns in set(said_by)}
    return [different[columns] for columns in said_by]


def _around_launches(trace: Trace, rows: Ints, spans: Spans) -> Ints:
    """For each of these device events, the innermost of the spans around its launch, or -1."""
    found = np.full(len(rows), NONE, np.int64)
    call = launch_of(trace)[rows]
    known = np.flatnonzero(call != NONE)
    if len(known) and len(spans):
        calls, asked = trace.calls, call[known]
        found[known] = innermost(spans, nest(spans), calls.start_ns[asked], calls.thread[asked])
    return found


def _message(trace: Trace, number: int, kernel: int, mark: int) -> Message:
    """Named as the kernel is, except where that does not say it: "ncclDevKernel_Generic" may be anything,
    and an all_to_all is made of sends."""
    said = trace.messages[number] if number != NONE else Message("")
    kind = collective_of(trace.names[kernel])
    if kind in (COMMUNICATION, SEND_RECV):
        named = map(collective_of, (said.collective, trace.text(mark)))
        kind = next((name for name in named if name not in (COMMUNICATION, SEND_RECV)), kind)
    return replace(said, collective=kind)


def communication(trace: Trace, rows: Ints, steps: int, most: int) -> Communication | None:
    """The collectives among the device's events, a step; None where there are none.

    Exposed is the time in which nothing else ran on the device, the rest is overlapped.
    """
    events = trace.device_events
    speaks = are_collectives(trace, rows)
    other, mine = rows[~speaks], rows[speaks]
    if not len(mine):
        return None
    computing = union(events.start_ns[other], events.end_ns[other])
    start, end = events.start_ns[mine], events.end_ns[mine]
    low, high = union(start, end)
    total = int((high - low).sum())
    exposed = total - int(covered_ns_of(computing, low, high).sum())
    alone = end - start - covered_ns_of(computing, start, end)
    each = 1e3 * steps
    costs = sorted(_costs(trace, mine, alone, steps), key=lambda cost: -cost.device_us)
    return Communication(
        device_us=total / each,
        overlapped_us=(total - exposed) / each,
        exposed_us=exposed / each,
        collectives=tuple(costs[:most]),
    )


def _costs(trace: Trace, rows: Ints, alone: Ints, steps: int) -> Iterator[CollectiveCost]:
    events = trace.device_events
    lengths = events.end_ns[rows] - events.start_ns[rows]
    places: dict[Message, list[int]] = {}
    for place, message in enumerate(messages_of(trace, rows)):
        places.setdefault(message, []).append(place)
    for message, found in places.items():
        yield CollectiveCost(
            kind=message.collective,
            runs=len(found) / steps,
            nbytes=message.nbytes,
            dtype=message.dtype,
            group=message.group,
            ranks=message.ranks,
            device_us=int(lengths[found].sum()) / 1e3 / steps,
            exposed_us=int(alone[found].sum()) / 1e3 / steps,
        )
