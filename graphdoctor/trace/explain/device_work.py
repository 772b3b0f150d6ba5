"""A Trace and its steps -> where the device's own time goes: kernels, families, lines, modules, copies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from graphdoctor.trace.api import which
from graphdoctor.trace.arrays import KINDS, Ints, Spans, Trace
from graphdoctor.trace.explain.gaps import events_of
from graphdoctor.trace.explain.hosts import frame_nesting, location, user_frames
from graphdoctor.trace.join import launch_of, operators_of_events
from graphdoctor.trace.kernel_families import COMMUNICATION, collective_of, family_of
from graphdoctor.trace.nesting import NONE, Nesting, innermost, nest
from graphdoctor.trace.windows import Window, covered_ns_of, inside, union
from graphdoctor.values.trace_work import (
    CollectiveCost,
    CopyCost,
    DeviceWork,
    FamilyCost,
    KernelCost,
    LineWork,
)

_MODULE = "nn.Module: "
_DIRECTION = re.compile(
    r"^(?:Memcpy|Copy)\s*(?P<way>[HDP]to[HDP]|\w+To\w+)(?:\s*\((?P<ends>[^)]*)\))?"
)


def device_work(trace: Trace, device: int, windows: Sequence[Window], most: int) -> DeviceWork:
    """The device's time within the windows, a step; the lists hold the costliest only."""
    rows = events_of(trace, device)
    rows = rows[inside(trace.device_events.start_ns[rows], windows)]
    if not len(rows):
        return DeviceWork()
    steps, modules = max(1, len(windows)), _modules(trace)
    return DeviceWork(
        kernels=tuple(_kernels(trace, rows, steps, most)),
        families=tuple(_families(trace, rows, steps)),
        lines=tuple(
            _by_span(trace, rows, user_frames(trace), frame_nesting(trace), len(windows), most)
        ),
        modules=tuple(_by_span(trace, rows, modules, nest(modules), len(windows), most)),
        copies=tuple(_copies(trace, rows, steps)),
        collectives=tuple(_collectives(trace, rows, steps)),
    )


def _lengths(trace: Trace, rows: Ints) -> Ints:
    lengths: Ints = trace.device_events.end_ns[rows] - trace.device_events.start_ns[rows]
    return lengths


def _totals(group: Ints, lengths: Ints) -> list[tuple[int, int, int]]:
    """(number, runs, ns) of each group, what took longest first."""
    time = np.bincount(group, lengths).astype(np.int64)
    runs = np.bincount(group)
    order = np.argsort(-time, kind="stable")
    return [(n, int(runs[n]), int(time[n])) for n in order.tolist() if runs[n]]


def _kernels(trace: Trace, rows: Ints, steps: int, most: int) -> Iterator[KernelCost]:
    name, lengths = trace.device_events.name[rows], _lengths(trace, rows)
    total = int(lengths.sum()) or 1
    operators = operators_of_events(trace)[rows]
    for number, runs, time in _totals(name, lengths)[:most]:
        mine = operators[(name == number) & (operators != NONE)]
        usual = int(np.bincount(trace.operators.name[mine]).argmax()) if len(mine) else NONE
        text = trace.names[number]
        yield KernelCost(
            name=text,
            family=family_of(text),
            operator=trace.names[usual] if usual != NONE else "",
            runs=runs / steps,
            device_us=time / 1e3 / steps,
            share=time / total,
        )


def _families(trace: Trace, rows: Ints, steps: int) -> Iterator[FamilyCost]:
    names = [family_of(name) for name in trace.names]
    numbers = {family: place for place, family in enumerate(dict.fromkeys(names))}
    family = np.array([numbers[name] for name in names])[trace.device_events.name[rows]]
    lengths = _lengths(trace, rows)
    total = int(lengths.sum()) or 1
    words = list(numbers)
    for number, runs, time in _totals(family, lengths):
        yield FamilyCost(words[number], runs / steps, time / 1e3 / steps, time / total)


def _modules(trace: Trace) -> Spans:
    named = which(trace.names, lambda name: name.startswith(_MODULE))
    return trace.frames.take(trace.rows_named(trace.frames, named))


def _by_span(
    trace: Trace, rows: Ints, spans: Spans, nesting: Nesting, steps: int, most: int
) -> Iterator[LineWork]:
    """Device time by the innermost of these spans around the launch."""
    call = launch_of(trace)[rows]
    rows, call = rows[call != NONE], call[call != NONE]
    if not len(spans) or not len(rows):
        return
    owner = innermost(spans, nesting, trace.calls.start_ns[call], trace.calls.thread[call])
    rows, owner = rows[owner != NONE], owner[owner != NONE]
    lengths = _lengths(trace, rows)
    total = int(lengths.sum()) or 1
    for number, runs, time in _totals(spans.name[owner], lengths)[:most]:
        text = trace.names[number]
        yield LineWork(
            name=text.removeprefix(_MODULE),
            location=location(text),
            kernels=runs / steps,
            device_us=time / 1e3 / steps,
            share=time / total,
        )


def _copies(trace: Trace, rows: Ints, steps: int) -> Iterator[CopyCost]:
    """By direction and the kind of host memory; AMD's profiler does not say whether it is pinned."""
    events = trace.device_events
    rows = rows[events.kind[rows] == KINDS.index("memcpy")]
    for number, runs, time in _totals(events.name[rows], _lengths(trace, rows)):
        text = trace.names[number]
        found = _DIRECTION.match(text)
        ends = (found["ends"] or "").lower() if found else ""
        host = next((word for word in ("pinned", "pageable") if word in ends), "")
        yield CopyCost(
            direction=found["way"] if found else text,
            host_memory=host,
            copies=runs / steps,
            nbytes=int(events.nbytes[rows[events.name[rows] == number]].sum()) / steps,
            device_us=time / 1e3 / steps,
        )


def _collectives(trace: Trace, rows: Ints, steps: int) -> Iterator[CollectiveCost]:
    """By kind; exposed is the time in which nothing else ran on the device."""
    events = trace.device_events
    speaks = which(trace.names, lambda name: family_of(name) == COMMUNICATION)
    is_comm = speaks[events.name[rows]] & (events.kind[rows] == KINDS.index("kernel"))
    other, rows = rows[~is_comm], rows[is_comm]
    if not len(rows):
        return
    computing = union(events.start_ns[other], events.end_ns[other])
    exposed = _lengths(trace, rows) - covered_ns_of(
        computing, events.start_ns[rows], events.end_ns[rows]
    )
    kinds = [collective_of(name) for name in trace.names]
    for kind in sorted({kinds[name] for name in events.name[rows].tolist()}):
        mine = np.array([kinds[name] == kind for name in events.name[rows].tolist()])
        yield CollectiveCost(
            kind=kind,
            runs=int(mine.sum()) / steps,
            nbytes=int(events.nbytes[rows[mine]].sum()) / steps,
            device_us=int(_lengths(trace, rows[mine]).sum()) / 1e3 / steps,
            exposed_us=int(exposed[mine].sum()) / 1e3 / steps,
        )
