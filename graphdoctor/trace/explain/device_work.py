"""Sum up the device's own time by kernel, line, module, copy and collective, and its memory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from graphdoctor.trace.api import (
    COMMUNICATION,
    SEND_RECV,
    collective_of,
    family_of,
    is_backward,
    is_collective_mark,
    is_communication,
    is_read,
    is_step_mark,
    is_upload,
)
from graphdoctor.trace.arrays import KINDS, Ints, Mask, Message, Spans, Trace, distinct, median
from graphdoctor.trace.explain.gaps import Gaps, events_of
from graphdoctor.trace.explain.hosts import frame_nesting, host_ns_by_name, location, user_frames
from graphdoctor.trace.explain.verdict import Judgement
from graphdoctor.trace.intervals import (
    NONE,
    Nesting,
    Window,
    covered_ns_of,
    innermost,
    inside,
    nest,
    union,
    value_at,
)
from graphdoctor.trace.join import launch_of, operators_of_events
from graphdoctor.values.trace import (
    CollectiveCost,
    Communication,
    CopyCost,
    DeviceWork,
    FamilyCost,
    KernelCost,
    LineWork,
    MemoryUse,
)

_MODULE = "nn.Module: "
_NUMBERED = re.compile(r"_\d+$")
_DIRECTION = re.compile(
    r"^(?:Memcpy|Copy)\s*(?P<way>[HDP]to[HDP]|\w+To\w+)(?:\s*\((?P<ends>[^)]*)\))?"
)
_MOST_OF_THE_TIME = 0.5
_COPIES = (
    "copies between host and device",
    "Keep on the GPU what every step copies, or copy it while kernels run: from pinned memory, with"
    " non_blocking=True, on a side stream.",
)
_COLLECTIVES = (
    "collectives, waiting for other ranks included",
    "Run `graphdoctor trace` on a folder with the traces of all ranks: it separates waiting from working, and names"
    " the rank that the others wait for.",
)


def device_work(
    trace: Trace,
    device: int,
    found: Gaps,
    steps_of: tuple[Sequence[Window], Sequence[Window]],
    most: int,
) -> DeviceWork:
    """The device's time in the steps, a step; the lists hold the costliest only.

    `steps_of`: the windows of the steps on the device and on the host.
    """
    windows, hosts = steps_of
    rows = events_of(trace, device)
    rows = rows[inside(trace.device_events.start_ns[rows], windows)]
    if not len(rows):
        return DeviceWork()
    steps = max(1, len(windows))
    modules = trace.frames.take(trace.named(trace.frames, lambda name: name.startswith(_MODULE)))
    # What the program itself named with record_function, without the marks of steps.
    annotations = trace.annotations.take(~trace.named(trace.annotations, is_step_mark))
    return DeviceWork(
        kernels=tuple(_kernels(trace, rows, steps, most)),
        families=tuple(_families(trace, rows, steps)),
        lines=tuple(_by_span(trace, rows, user_frames(trace), frame_nesting(trace), hosts))[:most],
        modules=tuple(_by_span(trace, rows, modules, nest(modules), hosts))[:most],
        annotations=tuple(_by_span(trace, rows, annotations, nest(annotations), hosts))[:most],
        copies=tuple(_copies(trace, rows, steps)),
        copies_exposed_us=_copies_exposed_ns(trace, rows) / 1e3 / steps,
        communication=communication(trace, rows, steps, most),
        memory=memory_use(trace, device, found, hosts),
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
            operator=trace.text(usual),
            runs=runs / steps,
            device_us=time / 1e3 / steps,
            share=time / total,
        )


def _families(trace: Trace, rows: Ints, steps: int) -> Iterator[FamilyCost]:
    name, lengths = trace.device_events.name[rows], _lengths(trace, rows)
    kernels = distinct(name, len(trace.names))
    families = [family_of(trace.names[one]) for one in kernels.tolist()]
    numbers = {family: place for place, family in enumerate(dict.fromkeys(families))}
    number_of = np.zeros(len(trace.names), np.int64)
    number_of[kernels] = [numbers[family] for family in families]
    family = number_of[name]
    total = int(lengths.sum()) or 1
    words = list(numbers)
    for number, runs, time in _totals(family, lengths):
        yield FamilyCost(words[number], runs / steps, time / 1e3 / steps, time / total)


def _by_span(
    trace: Trace, rows: Ints, spans: Spans, nesting: Nesting, hosts: Sequence[Window]
) -> Iterator[LineWork]:
    """Device time by the innermost of these spans around the launch, the most first; modules by class."""
    call = launch_of(trace)[rows]
    rows, call = rows[call != NONE], call[call != NONE]
    if not len(spans) or not len(rows):
        return
    owner = _owners(trace, spans, nesting, call)
    rows, owner = rows[owner != NONE], owner[owner != NONE]
    labels = {
        name: _label(trace.names[name]) for name in distinct(spans.name, len(trace.names)).tolist()
    }
    numbers = {label: place for place, label in enumerate(dict.fromkeys(labels.values()))}
    group = np.full(len(trace.names), NONE, np.int64)
    group[list(labels)] = [numbers[label] for label in labels.values()]
    host = np.zeros(len(numbers), np.int64)
    np.add.at(
        host, group[list(labels)], host_ns_by_name(trace, spans, nesting, hosts)[0][list(labels)]
    )
    places = np.bincount(group[list(labels)], minlength=len(numbers))
    steps, lengths, words = max(1, len(hosts)), _lengths(trace, rows), list(numbers)
    total = int(lengths.sum()) or 1
    for number, runs, time in _totals(group[spans.name[owner]], lengths):
        yield LineWork(
            name=words[number],
            location=location(words[number]),
            kernels=runs / steps,
            device_us=time / 1e3 / steps,
            share=time / total,
            host_us=int(host[number]) / 1e3 / steps,
            places=int(places[number]),
        )


def _label(name: str) -> str:
    """A function's or an annotation's name as it is; a module's without its number among its class."""
    if not name.startswith(_MODULE):
        return name
    return _NUMBERED.sub("", name.removeprefix(_MODULE))


def _owners(trace: Trace, spans: Spans, nesting: Nesting, call: Ints) -> Ints:
    """For each launch the innermost span around it; for those of autograd's own thread, which has none, that
    of the thread with the most, which waits for it inside of backward()."""
    calls = trace.calls
    moment, thread = calls.start_ns[call], calls.thread[call]
    counts = np.bincount(spans.thread, minlength=len(trace.threads))
    is_engine = trace.named(trace.operators, is_backward)
    engines = np.bincount(trace.operators.thread[is_engine], minlength=len(trace.threads)) > 0
    without = engines[thread] & (counts[thread] == 0)
    return innermost(spans, nesting, moment, np.where(without, counts.argmax(), thread))


def _copies_exposed_ns(trace: Trace, rows: Ints) -> int:
    """The time in which the device only copies to the host or from it."""
    events = trace.device_events
    between = trace.named(events, is_read) | trace.named(events, is_upload)
    copying = (between & (events.kind == KINDS.index("memcpy")))[rows]
    mine, other = rows[copying], rows[~copying]
    low, high = union(events.start_ns[mine], events.end_ns[mine])
    working = union(events.start_ns[other], events.end_ns[other])
    return int((high - low).sum()) - int(covered_ns_of(working, low, high).sum())


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


def memory_use(
    trace: Trace, device: int, found: Gaps, host_windows: Sequence[Window]
) -> MemoryUse | None:
    """Of the device's own allocator in the windows of host time; None where nothing was recorded."""
    events = trace.memory
    label = trace.devices[device]
    mine = events.device == int(label) if label.isdigit() else events.device != NONE
    if not mine.any():
        # AMD's profiler numbers kernels by the machine's agents, and memory by the visible devices.
        mine = events.device != NONE
        if len(set(events.device[mine].tolist())) != 1:
            return None
    events = events.take(mine)
    rows = np.flatnonzero(inside(events.start_ns, host_windows))
    if not len(rows):
        return None
    steps, is_given = len(host_windows), events.nbytes[rows] > 0
    given = rows[is_given]
    knows_held = bool(events.allocated.any() or events.reserved.any())
    windows = host_windows if knows_held else ()
    return MemoryUse(
        peak_allocated_bytes=int(events.allocated[rows].max()) if knows_held else None,
        peak_reserved_bytes=int(events.reserved[rows].max()) if knows_held else None,
        growth_bytes=_growth(events.start_ns, events.allocated, windows),
        reserved_growth_bytes=_growth(events.start_ns, events.reserved, windows),
        allocations=len(given) / steps,
        allocated_bytes=int(events.nbytes[given].sum()) / steps,
        allocations_in_gaps=int(_in_gaps(found, events.start_ns[given]).sum()) / steps,
    )


def _growth(moments: Ints, held: Ints, windows: Sequence[Window]) -> float | None:
    """How much more is held at the end of a step than at that of the one before, in the median; None of one."""
    if len(windows) < 2:
        return None
    last = np.searchsorted(moments, sorted(high for _, high in windows), side="left") - 1
    known = held[last[last >= 0]]
    return median(np.diff(known)) if len(known) > 1 else None


def _in_gaps(found: Gaps, moments: Ints) -> Ints:
    """Which moments lie in a gap, in which the device waits."""
    place = np.searchsorted(found.start_ns, moments, side="right") - 1
    if not len(found.start_ns):
        return np.zeros(len(moments), np.int64)
    is_inside: Ints = ((place >= 0) & (found.end_ns[np.maximum(place, 0)] > moments)).astype(
        np.int64
    )
    return is_inside


def occupied(judged: Judgement, work: DeviceWork, step_us: float) -> Judgement:
    """The judgement of a busy device, with what it does instead of computing where that is most of the step.

    "Look at the kernels" would be wrong advice for it.
    """
    if judged.verdict != "gpu-bound":
        return judged
    for exposed_us, (what, advice) in _exposed(work):
        share = exposed_us / step_us if step_us else 0.0
        if share > _MOST_OF_THE_TIME:
            reason = f" For {share:.0%} of the time it only runs {what}."
            return replace(judged, reason=judged.reason + reason, advice=advice)
    return judged


def _exposed(work: DeviceWork) -> Iterator[tuple[float, tuple[str, str]]]:
    """What may run alone on the device, and how long it does in a step."""
    yield work.copies_exposed_us, _COPIES
    if work.communication is not None:
        yield work.communication.exposed_us, _COLLECTIVES


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
    return dataclasses.replace(said, collective=kind)


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
