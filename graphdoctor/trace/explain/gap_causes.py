"""Find what the host did while the device waited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, get_args

import numpy as np

from graphdoctor.trace.api import is_blocking, is_step_mark
from graphdoctor.trace.arrays import Ints, Spans, Trace, distinct, median, together
from graphdoctor.trace.explain.gaps import Gaps
from graphdoctor.trace.explain.hosts import is_user_frame, location, user_frames, user_functions
from graphdoctor.trace.explain.warm_up import cold_stretches
from graphdoctor.trace.intervals import (
    NONE,
    Nesting,
    Window,
    covered_ns_of,
    inherited,
    innermost,
    inside,
    nest,
    union,
    value_at,
)
from graphdoctor.trace.join import launch_of, operator_of
from graphdoctor.values.trace import Gap, GapCause, IdleKind, WorkKind

KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
_HALF = 2


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Stretches in which the device waited and the host had not launched yet, in order of time.

    `gap` is the place of each among the gaps, `thread` whose doing explains it.
    """

    gap: Ints
    low_ns: Ints
    high_ns: Ints
    thread: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """The spans of host threads around the stretches, and the waiting that each explains itself.

    `until_ns` is where a span ends, at the latest where one beside it begins. `kind` is a place in KINDS, `line` the
    name of the user's innermost function or -1, both of the span itself or of what is around it.
    """

    waiting: Waiting
    spans: Spans
    nesting: Nesting
    until_ns: Ints
    own_ns: Ints
    kind: Ints
    line: Ints

    @property
    def unrecorded_ns(self) -> int:
        """Waiting in which the profiler saw nothing of the host."""
        return int((self.waiting.high_ns - self.waiting.low_ns).sum() - self.own_ns.sum())


def activity(trace: Trace, found: Gaps, windows: Sequence[Window]) -> Activity:
    """What the host did in the gaps within the windows that end with a launch it was late for."""
    counted = inside(found.end_ns, windows, closed="right")
    length = found.sync_wait_ns + found.host_ns
    gap = np.flatnonzero(counted & (length > 0))
    gap, low, high = _without_cold(trace, found, gap, found.start_ns[gap] + length[gap])
    launching = trace.calls.thread[found.call[gap]] if len(gap) else gap
    spans = _host_spans(trace, low, high)
    thread = _explaining_threads(spans, low, high, launching)
    waiting = Waiting(gap, low, high, thread)
    spans = _explaining(spans, waiting)
    nesting = nest(spans)
    own = np.zeros(len(spans), np.int64)
    until = _ends(spans, nesting)
    for one, stretches in _by_thread(waiting):
        mine = nesting.rows.get(one, waiting.gap[:0])
        own[mine] = covered_ns_of(stretches, spans.start_ns[mine], until[mine])
    inner = np.flatnonzero(nesting.parent != NONE)
    np.subtract.at(own, nesting.parent[inner], own[inner].copy())
    kinds, lines = _meanings(trace, spans)
    kind = inherited(kinds, nesting.parent)
    return Activity(
        waiting=waiting,
        spans=spans,
        nesting=nesting,
        until_ns=until,
        own_ns=np.maximum(own, 0),
        kind=np.where(kind == NONE, KINDS.index("ordinary"), kind),
        line=inherited(lines, nesting.parent),
    )


def _without_cold(trace: Trace, found: Gaps, gap: Ints, until: Ints) -> tuple[Ints, Ints, Ints]:
    """The stretches from the start of each gap, less its cold starts: place of the gap, start, end."""
    start = found.start_ns[gap]
    if not found.warm_up_ns[gap].any():
        return gap, start, until
    pieces: list[tuple[int, int, int]] = []
    stretches = cold_stretches(trace)
    for place, low, high in zip(gap.tolist(), start.tolist(), until.tolist(), strict=True):
        cold = stretches.get(int(trace.calls.thread[found.call[place]]))
        if cold is not None:
            here = slice(
                np.searchsorted(cold[1], low, side="right"), np.searchsorted(cold[0], high)
            )
            for begin, end in zip(cold[0][here].tolist(), cold[1][here].tolist(), strict=True):
                pieces.append((place, low, begin))
                low = end
        pieces.append((place, low, high))
    kept = np.array([piece for piece in pieces if piece[2] > piece[1]], np.int64).reshape(-1, 3)
    return kept[:, 0], kept[:, 1], kept[:, 2]


def doing(found: Activity, gaps: Ints) -> Ints:
    """For each of these gaps, the row of the span that the host was in in the middle of it, or -1."""
    waiting = found.waiting
    place = np.minimum(np.searchsorted(waiting.gap, gaps), max(0, len(waiting.gap) - 1))
    if not len(waiting.gap):
        return np.full(len(gaps), NONE, np.int64)
    middle = (waiting.low_ns[place] + waiting.high_ns[place]) // _HALF
    row = innermost(found.spans, found.nesting, middle, waiting.thread[place])
    known: Ints = np.where(waiting.gap[place] == gaps, row, NONE)
    return known


def _host_spans(trace: Trace, low: Ints, high: Ints) -> Spans:
    """Everything that the profiler saw of the host in these stretches, by start."""
    annotations = trace.annotations.take(~trace.named(trace.annotations, is_step_mark))
    tables = (trace.operators, trace.frames, annotations, trace.calls, trace.overheads)
    return together(
        [
            table.take(covered_ns_of((low, high), table.start_ns, table.end_ns) > 0)
            for table in tables
        ]
    )


def _explaining_threads(spans: Spans, low: Ints, high: Ints, launching: Ints) -> Ints:
    """The launching thread; where nothing is known of it, the one that launched before.

    The backward pass is launched by a thread that sleeps while the main thread works.
    """
    before = np.append(launching[:1], launching[:-1])
    asked = before != launching
    if not asked.any():
        return launching
    seen = np.zeros(len(low), np.int64)
    for one in sorted(set(launching[asked].tolist())):
        stretches = spans.take(spans.thread == one)
        outer = stretches.take(nest(stretches).is_outermost)
        mine = asked & (launching == one)
        seen[mine] = covered_ns_of((outer.start_ns, outer.end_ns), low[mine], high[mine])
    found: Ints = np.where(asked & (_HALF * seen < high - low), before, launching)
    return found


def _explaining(spans: Spans, waiting: Waiting) -> Spans:
    """The spans, each of which lies in some stretch, that lie in a stretch which their own thread explains."""
    if len(set(waiting.thread.tolist())) == 1:
        return spans.take(spans.thread == waiting.thread[0])
    covered = np.zeros(len(spans), np.int64)
    for one, stretches in _by_thread(waiting):
        mine = np.flatnonzero(spans.thread == one)
        covered[mine] = covered_ns_of(stretches, spans.start_ns[mine], spans.end_ns[mine])
    return spans.take(covered > 0)


def _by_thread(waiting: Waiting) -> Iterator[tuple[int, tuple[Ints, Ints]]]:
    for one in sorted(set(waiting.thread.tolist())):
        mine = waiting.thread == one
        yield one, (waiting.low_ns[mine], waiting.high_ns[mine])


def _ends(spans: Spans, nesting: Nesting) -> Ints:
    """The end of each span, at most that of the span around it and the start of the next beside it.

    An annotation that begins inside of a function and outlives it crosses the function's span.
    """
    order = np.lexsort((spans.thread, nesting.parent))
    until = spans.end_ns.copy()
    here, after = order[:-1], order[1:]
    beside = (nesting.parent[here] == nesting.parent[after]) & (
        spans.thread[here] == spans.thread[after]
    )
    here, after = here[beside], after[beside]
    until[here] = np.minimum(until[here], spans.start_ns[after])
    inner = nesting.parent != NONE
    while True:
        clipped = np.where(inner, np.minimum(until, until[nesting.parent]), until)
        if (clipped == until).all():
            return until
        until = clipped


def _meanings(trace: Trace, spans: Spans) -> tuple[Ints, Ints]:
    """Each span's own kind of work, and its name where it is the user's function; else -1."""
    used = np.zeros(len(trace.names), np.bool_)
    used[spans.name] = True
    frames = np.zeros(len(trace.names), np.bool_)
    frames[trace.frames.name] = True
    kind, line = (np.full(len(trace.names), NONE, np.int64) for _ in range(2))
    for name in np.flatnonzero(used).tolist():
        known = known_work(trace.names[name])
        kind[name] = KINDS.index(known) if known is not None else NONE
        if frames[name] and is_user_frame(trace.names[name]):
            line[name] = name
    return kind[spans.name], line[spans.name]


def silent_beside_python(trace: Trace, found: Activity) -> tuple[Ints, Ints]:
    """For each stretch how long nothing began or ended on its thread around its middle, and how much
    Python other threads began meanwhile: 0 where that silence is less than half of the stretch.
    """
    waiting = found.waiting
    silence, python = (np.zeros(len(waiting.gap), np.int64) for _ in range(2))
    held = trace.named(trace.frames, lambda name: known_work(name) in ("lock", "sleep"))
    frames = trace.frames.take(~held)
    for one, (low, high) in _by_thread(waiting) if len(frames) else ():
        other = frames.start_ns[frames.thread != one]
        if not len(other):
            continue
        mine = waiting.thread == one
        spans = found.spans.take(found.spans.thread == one)
        edges = np.sort(np.concatenate((spans.start_ns, spans.end_ns, low, high)))
        middle = (low + high) // _HALF
        after = np.searchsorted(edges, middle, side="right")
        begin, end = edges[after - 1], edges[np.minimum(after, len(edges) - 1)]
        began = np.searchsorted(other, end) - np.searchsorted(other, begin)
        silence[mine] = end - begin
        python[mine] = np.where(_HALF * (end - begin) >= high - low, began, 0)
    return silence, python


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


def longest_gaps(
    trace: Trace, found: Gaps, windows: Sequence[Window], most: int, acted: Activity
) -> tuple[Gap, ...]:
    """The longest gaps within the windows, the longest first."""
    places = longest_places(found, windows, most)
    begin = windows[0][0] if windows else 0
    # The user's innermost frame around the wait, else around the launch, or -1.
    call = np.where(found.wait[places] != NONE, found.wait[places], found.call[places])
    lines = np.full(len(places), NONE, np.int64)
    lines[call != NONE] = user_functions(trace, trace.calls.take(call[call != NONE]))
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
        warm_up_ns=int(found.warm_up_ns[place]),
    )


# Work that is no part of launching the model: a graph does not remove it.
ELSEWHERE: frozenset[WorkKind] = frozenset(
    {
        *("data-loading", "preprocessing", "allocation", "garbage-collection", "compilation"),
        *("graph-instantiation", "logging", "files", "another-thread", "sleep", "lock", "warm-up"),
    }
)

# Of this not even the best graph spares anything: it makes the step's inputs. A line that logs, or a file that is
# read, may stand inside of the model, which replays do not run; an allocation or a compilation may go, too.
STAYS: frozenset[WorkKind] = frozenset({"data-loading", "preprocessing"})

_KNOWN: tuple[tuple[WorkKind, str], ...] = (
    ("allocation", r"^(cuda|hip)(Malloc|Free|Host(Alloc|Malloc|Free|Register)|MemPool)|^cu(Mem(Alloc|"
     r"Free|Create|Map|Unmap|Release|SetAccess|Address)|MemHostAlloc)"),
    ("graph-instantiation", r"^(cuda|hip|cu)Graph(Instantiate|Exec(Update|Destroy)|Upload)"
     r"|^(cuda|hip|cu)Stream(Begin|End)Capture|cuda/graphs\.py\(\d+\): (capture_begin|capture_end"
     r"|__enter__|__exit__|instantiate)|capture_(begin|end) of .*CUDAGraph"),
    ("compilation", r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|bytecode_trans)"
     r"|torch/_inductor/(compile_fx|graph|scheduler|codegen|lowering|codecache|select_algorithm"
     r"|async_compile|autotune_process)|torch/fx/(experimental/(symbolic|proxy|recording)|_symbolic_trace|passes/)|triton/(compiler|runtime/(autotuner|build))"
     r"|triton_heuristics\.py\(\d+\): (autotune|benchmark|precompile)|^nvrtc|^hiprtc"
     r"|torch/utils/cpp_extension\.py"),
    ("warm-up", r"^(cu|hip)(Module|Library)Load|^cudaLibraryLoad|^Lazy Function Loading"
     r"|^Runtime Triggered Module Loading"),
    ("garbage-collection", r"^<built-in function collect>|^gc\.py|\bgarbage[ _-]?collect|^gc$"
     r"|^(python )?gc(\.collect| collect)"),
    ("data-loading", r"DataLoader|torch/utils/data/|torchdata/|(^|/)datasets/|webdataset/|nvidia/dali/"
     r"|ffcv/|streaming/base/"),
    ("preprocessing", r"scipy/(ndimage|signal)|(^|/)PIL/|torchvision/(transforms|io)|(^|/)cv2[/ .]"
     r"|skimage/|albumentations/|image_processing|image_transforms|feature_extraction|tokenization_"
     r"|tokenizers|librosa/|torchaudio/(transforms|functional|compliance)|torchvision\.transforms"
     r"|_preprocess\b|: preprocess"),
    ("logging", r"^logging/|/logging/__init__\.py|^<built-in function print>|tensorboard/|tensorboardX"
     r"|(^|/)wandb/|(^|/)mlflow/|(^|/)loguru/|(^|/)rich/|tqdm/(?!_monitor)|(^|/)neptune/|comet_ml/"),
    ("files", r"torch/serialization\.py|safetensors|^<built-in method (read|write|flush|fsync) of"
     r"|^<built-in function (open|fsync)>|(^|/)pickle\.py|<built-in (function|method) (load|dump)s?>"),
    ("optimizer", r"^Optimizer\.|torch/optim/|(^|/)(apex|bitsandbytes)/optim"),
    ("sleep", r"<built-in function sleep>|^n?sleep$"),
    ("lock", r"<built-in method acquire of _thread|<method 'acquire' of|<built-in method poll of"
     r"|<built-in function select>|<built-in method join of|^pthread_(mutex|cond)"),
)  # fmt: skip
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KNOWN)


@lru_cache(maxsize=1 << 13)
def known_work(name: str) -> WorkKind | None:
    """What the host is known to do under this name; None for ordinary Python and operators."""
    for kind, pattern in _PATTERNS:
        if pattern.search(name):
            return kind
    return "sync" if is_blocking(name) else None
