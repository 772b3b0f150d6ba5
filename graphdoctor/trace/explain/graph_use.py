"""Find the CUDA graphs of a trace: captures, instantiations, replays, who replays them and their kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from graphdoctor.trace.api import is_capture, is_graph_launch, is_instantiation
from graphdoctor.trace.arrays import Ints, Mask, Spans, Trace
from graphdoctor.trace.explain.gaps import events_of
from graphdoctor.trace.explain.hosts import location, user_functions, within
from graphdoctor.trace.intervals import NONE, Nesting, Window, innermost, nest, window_of
from graphdoctor.trace.join import launch_of, operator_nesting
from graphdoctor.values.figures import count_text, time_text
from graphdoctor.values.locations import Location
from graphdoctor.values.trace import GraphReplay, GraphUse, StepBasis

# Who replays, by what is around the launch; the first that fits. A server's own runner may replay a
# graph that torch.compile's code runs in, and torch.cuda.graphs is around every replay from Python.
_MAKERS = tuple(
    (maker, re.compile(pattern))
    for maker, pattern in (
        ("vLLM", r"(^|/)vllm/"),
        ("SGLang", r"(^|/)sglang/"),
        ("TensorRT-LLM", r"(^|/)tensorrt_llm/"),
        ("graphdoctor", r"(^|/)graphdoctor/"),
        ("torch.compile", r"torch/_inductor/cudagraph_(trees|utils)|^Torch-Compiled Region|^CompiledFunction"
         r"|Call CompiledFxGraph"),
        ("torch.cuda.graphs", r"(^|/)torch/cuda/graphs\.py"),
    )
)  # fmt: skip


def in_graphs(trace: Trace, rows: Ints) -> Mask:
    """Which of these device events were launched as part of a graph.

    By the graph's id where the profiler writes one, else by the call, else by many kernels sharing
    a correlation id.
    """
    events = trace.device_events.take(rows)
    call = launch_of(trace)[rows]
    by_call = np.zeros(len(rows), np.bool_)
    if len(trace.calls):
        by_call = (call != NONE) & trace.named(trace.calls, is_graph_launch)[call]
    shared = np.zeros(len(rows), np.bool_)
    lost = (call == NONE) & (events.correlation >= 0)
    if lost.any():
        values, counts = np.unique(events.correlation[lost], return_counts=True)
        shared = lost & np.isin(events.correlation, values[counts > 1])
    found: Mask = by_call | shared | (events.graph != 0)
    return found


def graph_use(
    trace: Trace, device: int, host_windows: Sequence[Window], basis: StepBasis, most: int
) -> GraphUse | None:
    """Captures, instantiations and launches of graphs in the windows of host time; None without any.

    `basis`: what the windows are; of a whole span nobody knows whether it is one step.
    """
    calls, steps = trace.calls, max(1, len(host_windows))
    counted = within(calls, host_windows)
    launches = counted & trace.named(calls, is_graph_launch)
    captures = counted & trace.named(calls, is_capture)
    instantiations = counted & trace.named(calls, is_instantiation)
    if not (launches.any() or captures.any() or instantiations.any()):
        return None
    rows = events_of(trace, device)
    rows = rows[launch_of(trace)[rows] != NONE]
    rows = rows[launches[launch_of(trace)[rows]]]
    making = np.flatnonzero(instantiations if instantiations.any() else captures)
    host_us = int((calls.end_ns - calls.start_ns)[instantiations].sum()) / 1e3 / steps
    place = _usual_place(trace, making)
    made_in = window_of(calls.start_ns[making], host_windows)
    return GraphUse(
        launches=int(launches.sum()) / steps,
        kernels=len(rows) / steps,
        captures=int(captures.sum()) / steps,
        instantiations=int(instantiations.sum()) / steps,
        instantiation_us=host_us,
        location=place,
        replays=tuple(_replays(trace, rows, np.flatnonzero(launches), steps))[:most],
        made_in_steps=len(np.unique(made_in)),
        finding=_finding(len(making), len(np.unique(made_in)), steps, host_us, place)
        if basis != "whole span"
        else "",
    )


def _finding(graphs: int, made_in: int, steps: int, host_us: float, place: Location | None) -> str:
    """That graphs are made where they should only be launched; "" where they are not."""
    if not graphs:
        return ""
    at = f" at {place.file}:{place.line} ({place.function})" if place is not None else ""
    cost = f", {time_text(host_us)} a step in instantiation" if host_us else ""
    made = f"{count_text(graphs, 'CUDA graph')}{cost}{at}"
    if steps == 1:
        return f"The one recorded step captures {made}. Record more steps to see whether each one does."
    if made_in == steps:
        return (
            f"All {steps:,} steps capture CUDA graphs: {made}. A graph pays when it is captured once and replayed many"
            " times. Capture before the steps, and only replay in them."
        )
    verb = "captures" if made_in == 1 else "capture"
    return (
        f"{made_in:,} of the {steps:,} steps {verb} {made}: the warm-up had not ended, or a new shape or a"
        " guard failure required another graph."
    )


def _usual_place(trace: Trace, calls: Ints) -> Location | None:
    """The user's function around most of these calls."""
    names = user_functions(trace, trace.calls.take(calls))
    names = names[names != NONE]
    return location(trace.names[np.bincount(names).argmax()]) if len(names) else None


def _replays(trace: Trace, rows: Ints, launches: Ints, steps: int) -> Iterator[GraphReplay]:
    """The launches of each graph, the one with the most device time first.

    A graph is known again by its id; where the profiler wrote none, by the kernels that it runs, and the
    launches of which no kernel was recorded are of one unknown graph.
    """
    events, calls = trace.device_events, trace.calls
    owner = np.searchsorted(launches, launch_of(trace)[rows])
    kernels = np.bincount(owner, minlength=len(launches))
    device = np.zeros(len(launches), np.int64)
    np.add.at(device, owner, events.end_ns[rows] - events.start_ns[rows])
    graph, content = np.zeros(len(launches), np.int64), np.zeros(len(launches), np.uint64)
    np.maximum.at(graph, owner, events.graph[rows])
    weights = np.random.default_rng(0).integers(1, 2**63, len(trace.names), np.uint64)
    np.add.at(content, owner, weights[events.name[rows]])  # in any order: streams run side by side
    content[graph != 0] = 0
    keys, group = np.unique(
        np.stack([graph.astype(np.uint64), content]), axis=1, return_inverse=True
    )
    group = group.reshape(-1)
    makers = _makers(trace, launches)
    spent = np.bincount(group, device, keys.shape[1])
    for number in np.argsort(-spent, kind="stable").tolist():
        mine = np.flatnonzero(group == number)
        own = rows[np.isin(owner, mine)]
        time = np.bincount(events.name[own], events.end_ns[own] - events.start_ns[own])
        names = np.argsort(-time, kind="stable")[:3]
        yield GraphReplay(
            graph_id=int(keys[0, number]),
            maker=makers[int(mine[0])],
            location=_usual_place(trace, launches[mine]),
            launches=len(mine) / steps,
            kernels=float(kernels[mine].mean()),
            launch_us=float((calls.end_ns - calls.start_ns)[launches[mine]].mean()) / 1e3,
            device_us=float(spent[number]) / 1e3 / steps,
            longest_kernels=tuple(trace.names[name] for name in names.tolist() if time[name]),
        )


def _makers(trace: Trace, launches: Ints) -> list[str]:
    """Who replays in each of these calls; "" where nothing around it says."""
    ranks = np.array(
        [
            next((n for n, (_, known) in enumerate(_MAKERS) if known.search(name)), len(_MAKERS))
            for name in trace.names
        ]
    )
    found = np.full(len(launches), len(_MAKERS))
    tables: tuple[tuple[Spans, Nesting], ...] = (
        (trace.frames, nest(trace.frames)),
        (trace.operators, operator_nesting(trace)),
        (trace.annotations, nest(trace.annotations)),
    )
    made = trace.calls.take(launches)
    for spans, nesting in tables:
        row = innermost(spans, nesting, made.start_ns, made.thread)
        while (row != NONE).any():
            known = row != NONE
            found[known] = np.minimum(found[known], ranks[spans.name[row[known]]])
            row[known] = nesting.parent[row[known]]
    words = [*(maker for maker, _ in _MAKERS), ""]
    return [words[rank] for rank in found.tolist()]
