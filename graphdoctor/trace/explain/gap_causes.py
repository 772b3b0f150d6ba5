"""What the host did while the device waited -> the causes that cost most, by kind of work and by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphdoctor.trace.arrays import Ints, Trace, distinct, median
from graphdoctor.trace.explain.activity import KINDS, Activity, doing, silent_beside_python
from graphdoctor.trace.explain.hosts import location, user_frames
from graphdoctor.trace.explain.known_work import ELSEWHERE
from graphdoctor.trace.join import launch_of
from graphdoctor.trace.nesting import NONE, value_at
from graphdoctor.trace.windows import covered_ns_of, union
from graphdoctor.values.trace import GapCause, IdleKind

_LONG_NS = 1_000_000  # a stretch this long, and this many times a usual one, is no launching
_LONG_TIMES = 50
_SOME_PYTHON = 3  # functions that another thread called while the launching one was silent
_BUILTIN = "<built-in"


class Doings(NamedTuple):
    """Idle time by what the host did: all kinds, the costliest places, and what no launching is."""

    kinds: tuple[IdleKind, ...]
    causes: tuple[GapCause, ...]
    elsewhere_share: float  # of the idle time: work that is no part of launching the model


class _Table(NamedTuple):
    """One row for each span, and for each stretch that another explains: time, kind, line, name."""

    time_ns: Ints
    kind: Ints
    line: Ints
    name: Ints


def doings(trace: Trace, acted: Activity, steps: int, idle_ns: int, most: int) -> Doings:
    """Sum up. `idle_ns` is all idle time of the steps, of which the shares are."""
    call = launch_of(trace)
    launched = trace.calls.start_ns[distinct(call[call != NONE], len(trace.calls))]
    usual = int(median(np.diff(launched))) if len(launched) > 1 else 0
    table = _table(trace, acted)
    total = idle_ns or 1
    by_kind = np.bincount(table.kind, table.time_ns, len(KINDS)).astype(np.int64)
    kinds = [
        IdleKind(KINDS[place], int(by_kind[place]) / 1e3 / steps, int(by_kind[place]) / total)
        for place in np.argsort(-by_kind, kind="stable").tolist()
        if by_kind[place]
    ]
    known = sum(int(by_kind[KINDS.index(kind)]) for kind in ELSEWHERE)
    return Doings(
        kinds=tuple(kinds),
        causes=tuple(_causes(trace, table, steps, total, most)),
        elsewhere_share=(known + _long_ns(acted, usual)) / total,
    )


def _table(trace: Trace, acted: Activity) -> _Table:
    spans, own = acted.spans, acted.own_ns.copy()
    others, time, line = _beside_python(trace, acted, own)
    unrecorded = max(0, acted.unrecorded_ns - int(time[others == NONE].sum()))
    return _Table(
        time_ns=np.concatenate((own, time, [unrecorded])),
        kind=np.concatenate(
            (acted.kind, np.full(len(time), KINDS.index("another-thread")),
             [KINDS.index("unrecorded")])
        ),
        line=np.concatenate((acted.line, line, [NONE])),
        name=np.concatenate((spans.name, line, [NONE])),
    )  # fmt: skip


def _beside_python(trace: Trace, acted: Activity, own: Ints) -> tuple[Ints, Ints, Ints]:
    """Stretches that another thread's Python explains: span that is relieved of them, time, function.

    C code says nothing while it runs, so a thread inside of a call or a builtin may work itself.
    """
    waiting = acted.waiting
    silence, python = silent_beside_python(trace, acted)
    place = np.flatnonzero(python >= _SOME_PYTHON)
    row = doing(acted, waiting.gap[place])
    names = value_at(acted.spans.name, row)
    calls = np.zeros(len(trace.names), np.bool_)
    calls[trace.calls.name] = True
    itself = [
        one != NONE and (calls[name] or trace.names[name].startswith(_BUILTIN)
                         or acted.kind[one] != KINDS.index("ordinary"))
        for one, name in zip(row.tolist(), names.tolist(), strict=True)
    ]  # fmt: skip
    place, row = place[~np.array(itself, np.bool_)], row[~np.array(itself, np.bool_)]
    time = silence[place]
    np.subtract.at(own, row[row != NONE], time[row != NONE])
    np.maximum(own, 0, out=own)
    return row, time, _function_of_others(trace, acted, place)


def _function_of_others(trace: Trace, acted: Activity, place: Ints) -> Ints:
    """The user's function that another thread called last before the middle of each stretch."""
    waiting = acted.waiting
    middle = (waiting.low_ns[place] + waiting.high_ns[place]) // 2
    found = np.full(len(place), NONE, np.int64)
    frames = user_frames(trace)
    for thread in distinct(waiting.thread[place], len(trace.threads)).tolist():
        others = frames.take(frames.thread != thread)
        asked = np.flatnonzero(waiting.thread[place] == thread)
        row = np.searchsorted(others.start_ns, middle[asked], side="right") - 1
        found[asked[row >= 0]] = others.name[row[row >= 0]]
    return found


def _causes(trace: Trace, table: _Table, steps: int, total: int, most: int) -> Iterator[GapCause]:
    """By kind and line, the costliest first; without a line by kind and name."""
    rows = np.flatnonzero(table.time_ns)
    if not len(rows):
        return
    lines, size = table.line[rows], len(trace.names) + 1
    named = np.where(lines != NONE, lines, size + table.name[rows] + 1)
    groups, group = np.unique(table.kind[rows] * (2 * size) + named, return_inverse=True)
    time = np.bincount(group, table.time_ns[rows]).astype(np.int64)
    for place in np.argsort(-time, kind="stable")[:most].tolist():
        mine = rows[group == place]
        by_name = np.bincount(table.name[mine] + 1, table.time_ns[mine])
        kind, named_by = divmod(int(groups[place]), 2 * size)
        line = named_by if named_by < size else NONE
        yield GapCause(
            kind=KINDS[kind],
            name=_name(trace, int(by_name.argmax()) - 1),
            location=location(trace.text(line)),
            idle_us=int(time[place]) / 1e3 / steps,
            share=int(time[place]) / total,
        )


def _name(trace: Trace, name: int) -> str:
    """A Python frame without its place, which stands beside it; all else as it is."""
    place = location(trace.text(name))
    return place.function if place is not None else trace.text(name)


def _long_ns(acted: Activity, usual_ns: int) -> int:
    """Ordinary or unrecorded work in stretches far longer than usual between two launches.

    What is known by name inside of them counts by its name already.
    """
    waiting = acted.waiting
    length = waiting.high_ns - waiting.low_ns
    long = length > max(_LONG_NS, _LONG_TIMES * usual_ns)
    row = doing(acted, waiting.gap[long])
    kinds = value_at(acted.kind, row)
    plain = (kinds == NONE) | (kinds == KINDS.index("ordinary"))
    place = np.flatnonzero(long)[plain]
    return int(length[place].sum()) - _known_ns(acted, place)


def _known_ns(acted: Activity, place: Ints) -> int:
    """How much of these stretches lies in spans that are known to be no launching."""
    spans, waiting = acted.spans, acted.waiting
    elsewhere = np.isin(acted.kind, [KINDS.index(kind) for kind in ELSEWHERE])
    above = acted.nesting.parent
    outermost = elsewhere & ((above == NONE) | ~elsewhere[above])
    total = 0
    for thread in distinct(waiting.thread[place], int(waiting.thread.max(initial=0)) + 1).tolist():
        known = np.flatnonzero(outermost & (spans.thread == thread))
        mine = place[waiting.thread[place] == thread]
        stretches = union(spans.start_ns[known], acted.until_ns[known])
        total += int(covered_ns_of(stretches, waiting.low_ns[mine], waiting.high_ns[mine]).sum())
    return total


def names_of(trace: Trace, acted: Activity, gaps: Ints) -> list[tuple[str, str]]:
    """For each gap what the host was in, in the middle of it, and the user's function around that."""
    row = doing(acted, gaps)
    columns = (value_at(acted.spans.name, row), value_at(acted.line, row))
    return [
        (_name(trace, name), trace.text(line))
        for name, line in zip(*(column.tolist() for column in columns), strict=True)
    ]
