"""Find the steps of a trace: which count, and why others are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from graphdoctor.trace.api import STEP_MARK
from graphdoctor.trace.arrays import Ints, Trace
from graphdoctor.trace.explain.gaps import events_of, whole_span
from graphdoctor.trace.intervals import NONE, Window
from graphdoctor.trace.join import launch_of
from graphdoctor.values.errors import UsageError
from graphdoctor.values.trace import StepBasis

_WARM_UP = frozenset({"Lazy Function Loading", "Runtime Triggered Module Loading"})
_SLOW_START = 2.0  # a first step this many times as long as the rest is a warm-up
_FEWEST_TO_JUDGE = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a device: from its first device event to that of the next step.

    `host` is the time in which it was launched. `left_out` is a reason, "" for a step that counts. `kind` is
    the same number for steps of the same kernels, but for some.
    """

    name: str
    window: Window
    host: Window
    kernels: int
    left_out: str = ""
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    basis: StepBasis
    all: tuple[Step, ...]

    @property
    def counted(self) -> tuple[Step, ...]:
        return tuple(step for step in self.all if not step.left_out)

    @property
    def windows(self) -> list[Window]:
        """Of the steps that count, on the device."""
        return [step.window for step in self.counted]

    @property
    def hosts(self) -> list[Window]:
        """Of the steps that count, on the host."""
        return [step.host for step in self.counted]


def find_steps(trace: Trace, device: int, *, only: int | None = None) -> Steps:
    """The steps by their annotations, else by what repeats in the launches, else the whole span.

    `only`: the number of one annotated step; UsageError if there is none of that number.
    """
    marks = _marks(trace)
    if only is not None:
        return Steps("annotations", (_one(trace, device, marks, only),))
    found = _between(trace, device, marks)
    if found:
        return Steps("annotations", _judged(trace, found))
    repeated = _repeated(trace, device)
    if repeated:
        return Steps("repeating launches", _judged(trace, repeated))
    window = whole_span(trace, device)
    count = len(events_of(trace, device))
    calls = trace.calls
    host = (int(calls.start_ns.min()), int(calls.end_ns.max())) if len(calls) else (0, 0)
    return Steps("whole span", (Step("whole span", window, host, count),))


def _marks(trace: Trace) -> list[tuple[int, str, Window]]:
    """Number, name and host time of each ProfilerStep annotation; of several threads, the first."""
    spans = trace.annotations
    found: dict[int, tuple[int, str, Window]] = {}
    numbers = {
        place: int(match[1])
        for place, name in enumerate(trace.names)
        if (match := STEP_MARK.match(name))
    }
    if not numbers:
        return []
    rows = np.flatnonzero(np.isin(spans.name, list(numbers)))
    for row in rows.tolist():
        number = numbers[int(spans.name[row])]
        window = (int(spans.start_ns[row]), int(spans.end_ns[row]))
        found.setdefault(number, (number, trace.names[int(spans.name[row])], window))
    return sorted(found.values(), key=lambda mark: mark[2])


def _one(trace: Trace, device: int, marks: list[tuple[int, str, Window]], number: int) -> Step:
    steps = _between(trace, device, marks)
    for mark, step in zip(marks, steps, strict=False):
        if mark[0] == number and step.kernels:
            return step
    known = ", ".join(str(mark[0]) for mark in marks) or "none"
    raise UsageError(
        f"The trace has no ProfilerStep#{number} that launched work on the device; its steps are: {known}."
    )


def _between(trace: Trace, device: int, marks: list[tuple[int, str, Window]]) -> list[Step]:
    """A step for each mark, by what was launched in it; one without launches has no window."""
    if not marks:
        return []
    rows = events_of(trace, device)
    owner = _owners(trace, rows, marks)
    if not (owner != NONE).any():
        return []
    first = _windows(trace, rows, owner, len(marks))
    counts = np.bincount(owner[owner != NONE], minlength=len(marks)).tolist()
    kinds = kinds_of(trace.device_events.name[rows], owner, len(marks))
    return [
        Step(mark[1], window, mark[2], kernels, kind=kind)
        for mark, window, kernels, kind in zip(marks, first, counts, kinds, strict=True)
    ]


def _owners(trace: Trace, rows: Ints, marks: list[tuple[int, str, Window]]) -> Ints:
    """For each event, the mark in which it was launched, or -1.

    An event whose launch is missing goes with the next one that has a launch, else with the last.
    """
    call = launch_of(trace)[rows]
    starts, ends = (np.array([mark[2][edge] for mark in marks]) for edge in (0, 1))
    has_launch = call != NONE
    launched = trace.calls.start_ns[call] if len(trace.calls) else call
    owner = np.searchsorted(starts, launched, side="right") - 1
    owner = np.where((owner >= 0) & (launched < ends[owner]), owner, NONE)
    known = np.flatnonzero(has_launch)
    if not len(known):
        return np.full(len(rows), NONE, np.int64)
    lost = np.flatnonzero(~has_launch)
    nearest = known[np.minimum(np.searchsorted(known, lost), len(known) - 1)]
    is_after_mark = trace.device_events.start_ns[rows[lost]] >= starts[owner[nearest]]
    owner[lost] = np.where(is_after_mark & (owner[nearest] != NONE), owner[nearest], NONE)
    return owner


def _windows(trace: Trace, rows: Ints, owner: Ints, count: int) -> list[Window]:
    """From each unit's first start on the device to that of the next one, or to its last end."""
    events = trace.device_events.take(rows[owner != NONE])
    mine = owner[owner != NONE]
    begin = np.full(count, np.iinfo(np.int64).max)
    end = np.zeros(count, np.int64)
    np.minimum.at(begin, mine, events.start_ns)
    np.maximum.at(end, mine, events.end_ns)
    has_any = np.bincount(mine, minlength=count) > 0
    windows = []
    for place in range(count):
        is_followed = place + 1 < count and has_any[place + 1]
        last = int(begin[place + 1] if is_followed else end[place])
        first = int(begin[place])
        windows.append((first, max(first, last)) if has_any[place] else (0, 0))
    return windows


def _repeated(trace: Trace, device: int) -> list[Step]:
    rows = events_of(trace, device)
    call = launch_of(trace)[rows]
    rows, call = rows[call != NONE], call[call != NONE]
    order = np.argsort(call, kind="stable")  # calls are ordered by start
    rows, call = rows[order], call[order]
    found = period(trace.device_events.name[rows])
    if found is None:
        return []
    begin, length = found
    owner = (np.arange(len(rows)) - begin) // length
    owner[:begin] = NONE
    count = (len(rows) - begin) // length
    owner[owner >= count] = NONE
    windows = _windows(trace, rows, owner, count)
    launched = trace.calls.start_ns[call[begin::length][:count]].tolist()
    last = int(trace.calls.end_ns[call].max())
    ends = [*launched[1:], last]
    return [
        Step(f"repetition {place}", window, (launched[place], ends[place]), length)
        for place, window in enumerate(windows)
    ]


def _judged(trace: Trace, steps: list[Step]) -> tuple[Step, ...]:
    """The steps with a reason at those that must not count; always leaves one that counts."""
    found = [step.kind for step in steps if step.kernels]
    largest = {kind: max(step.kernels for step in steps if step.kind == kind) for kind in found}
    usual = max(found, key=lambda kind: (found.count(kind), largest[kind]))
    judged = [_judge(trace, step, steps, usual) for step in steps]
    if any(not step.left_out for step in judged):
        return tuple(judged)
    return tuple(step if not step.kernels else replace(step, left_out="") for step in judged)


def _judge(trace: Trace, step: Step, steps: Sequence[Step], usual: int) -> Step:
    if not step.kernels or step.window[0] == step.window[1]:
        return replace(step, left_out="it launched nothing on this device")
    if step.kind != usual:
        others = [other.kernels for other in steps if other.kind == usual]
        low, high = min(others), max(others)
        count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        why = f"it is of another kind: {step.kernels:,} device events, the others have {count}"
        if low <= step.kernels <= high:
            why += " of other names"
        return replace(step, left_out=why)
    if step is steps[0] and _is_warm_up(trace, steps):
        return replace(
            step, left_out="it is a warm-up: much longer than the others, or it loads code"
        )
    return step


def _is_warm_up(trace: Trace, steps: Sequence[Step]) -> bool:
    others = [later.window[1] - later.window[0] for later in steps[1:] if later.kernels]
    if len(others) + 1 < _FEWEST_TO_JUDGE:
        return False
    low, high = steps[0].host
    if high - low > _SLOW_START * float(np.median(others)):
        return True
    spans = trace.overheads
    begun = spans.start_ns[trace.named(spans, _WARM_UP.__contains__)]
    here = int(((begun >= low) & (begun < high)).sum())
    return here > 0 and here == len(begun)


_FEWEST_REPEATS = 3
_SHORTEST = 8  # fewer launches are a loop inside of a step
_ANCHORS = 8  # how many of the rarest names are tried
_STRIDES = 12  # how often a name may occur within one unit and still be tried
_MATCHING = 0.99
_SIMILAR = 0.9  # of what runs before the repetition also runs in it


def period(sequence: Ints) -> tuple[int, int] | None:
    """(where the repetition begins, length of the unit); None where nothing repeats three times.

    The shortest unit that repeats to the end, from the beginning or after at least one unit of
    similar work: twelve equal layers between an embedding and a head are not steps.
    """
    count = len(sequence)
    for length in sorted(set(_candidates(sequence))):
        if length < _SHORTEST:
            continue
        if length * _FEWEST_REPEATS > count:
            break
        begin = _begin(sequence, length)
        if count - begin < _FEWEST_REPEATS * length or not _is_step(sequence, begin, length):
            continue
        if not any(_begin(sequence[begin:], short) == 0 for short in range(1, _SHORTEST)):
            return begin, length
    return None


def _is_step(sequence: Ints, begin: int, length: int) -> bool:
    last = sequence[-2 * length : -length] != sequence[-length:]
    if np.count_nonzero(last) > (1 - _MATCHING) * length:
        return False
    if begin == 0:
        return True
    similar = np.isin(sequence[:begin], sequence[begin : begin + length])
    return bool(length <= begin <= len(sequence) // 2 and similar.mean() >= _SIMILAR)


def _candidates(sequence: Ints) -> Iterator[int]:
    """The usual distances between equal names, for the rarest names."""
    values, counts = np.unique(sequence, return_counts=True)
    rare = values[np.argsort(counts, kind="stable")]
    counts = np.sort(counts)
    for value in rare[counts >= _FEWEST_REPEATS][:_ANCHORS].tolist():
        places = np.flatnonzero(sequence == value)
        for stride in range(1, min(_STRIDES, len(places) - 1) + 1):
            distances = places[stride:] - places[:-stride]
            common, times = np.unique(distances, return_counts=True)
            yield int(common[np.argmax(times)])


def _begin(sequence: Ints, length: int) -> int:
    """From where on each name equals the one a unit later, but for one in a hundred."""
    differs = sequence[:-length] != sequence[length:]
    if not differs.any():
        return 0
    # The mean of all that follows a place, from the back.
    remaining = np.arange(len(differs), 0, -1)
    later = np.cumsum(differs[::-1])[::-1]
    good = np.flatnonzero((later <= (1 - _MATCHING) * remaining) & ~differs)
    return int(good[0]) if len(good) else len(sequence)


OTHER = -1
_ALIKE = 0.7  # of all kernels of two steps of one kind, by name and number
_MOST_KINDS = 16


def kinds_of(names: Ints, owner: Ints, steps: int) -> list[int]:
    """For each step the number of its kind, in order of their first steps; OTHER beyond 16 kinds.

    `names` are those of the device events, `owner` the step of each or -1. Steps of one kind may differ by some
    kernels: another branch, a shorter batch, a scaler that skips. Training and evaluation do not.
    """
    size = int(names.max(initial=0)) + 1
    mine = owner >= 0
    pairs, counts = np.unique(owner[mine] * size + names[mine], return_counts=True)
    edges = np.searchsorted(pairs, np.arange(steps + 1) * size).tolist()
    leaders: list[Ints] = []
    kinds = []
    for low, high in pairwise(edges):
        own, count = pairs[low:high] % size, counts[low:high]
        kind = next((n for n, other in enumerate(leaders) if _alike(other, own, count)), OTHER)
        if kind == OTHER and len(own) and len(leaders) < _MOST_KINDS:
            leader = np.zeros(size, np.int64)
            leader[own] = count
            kind = len(leaders)
            leaders.append(leader)
        kinds.append(kind)
    return kinds


def _alike(leader: Ints, names: Ints, counts: Ints) -> bool:
    common = int(np.minimum(leader[names], counts).sum())
    return common >= _ALIKE * (int(leader.sum()) + int(counts.sum()) - common)
