"""A Trace and its steps -> collectives by kind, size and group, and what of them nothing else hides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphdoctor.trace.api import which
from graphdoctor.trace.arrays import KINDS, Ints, Mask, Message, Trace
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.kernel_families import COMMUNICATION, collective_of, family_of
from graphdoctor.trace.nesting import NONE, innermost, nest
from graphdoctor.trace.windows import covered_ns_of, union
from graphdoctor.values.trace_work import CollectiveCost, Communication


def are_collectives(trace: Trace, rows: Ints) -> Mask:
    """Which of these device events are kernels of collectives."""
    events = trace.device_events
    speaks = which(trace.names, lambda name: family_of(name) == COMMUNICATION)
    found: Mask = (speaks[events.name[rows]] | (events.message[rows] != NONE)) & (
        events.kind[rows] == KINDS.index("kernel")
    )
    return found


def messages_of(trace: Trace, rows: Ints) -> list[Message]:
    """What each of these collectives moves: by its own arguments, else by those of the call that
    launched it, else no more than the name of its kernel says."""
    events = trace.device_events
    place = events.message[rows].copy()
    asked = np.flatnonzero((place == NONE) & (launch_of(trace)[rows] != NONE))
    if len(asked) and len(trace.exchanges):
        call = launch_of(trace)[rows[asked]]
        calls, exchanges = trace.calls, trace.exchanges
        around = innermost(exchanges, nest(exchanges), calls.start_ns[call], calls.thread[call])
        known = around != NONE
        place[asked[known]] = exchanges.message[around[known]]
    kinds = {name: collective_of(trace.names[name]) for name in set(events.name[rows].tolist())}
    return [
        _message(trace, number, kinds[name])
        for number, name in zip(place.tolist(), events.name[rows].tolist(), strict=True)
    ]


def _message(trace: Trace, number: int, kind: str) -> Message:
    """Named as the kernel is, except where that says nothing ("ncclDevKernel_Generic")."""
    if number == NONE:
        return Message(kind)
    said = trace.messages[number]
    named = collective_of(said.collective) if kind == COMMUNICATION else kind
    return Message(named, said.nbytes, said.dtype, said.group, said.ranks)


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
