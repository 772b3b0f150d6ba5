"""Find cold starts: calls that load code, tune or set up a library because a kernel runs for the first time, and
captures of CUDA graphs.

A cold start happens once, so it says nothing of a steady step: shares and predictions leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from graphdoctor.trace.api import (
    is_capture,
    is_capture_end,
    is_graph_launch,
    is_instantiation,
    is_kernel_launch,
    is_memcpy,
    is_step_mark,
    is_synchronization,
)
from graphdoctor.trace.arrays import Calls, Ints, Mask, Spans, Trace, distinct, median, no_ints
from graphdoctor.trace.intervals import NONE, Window, covered_ns_of, inside, outermost, union
from graphdoctor.trace.join import launch_of, operator_nesting, operator_of

# The longest ordinary launch of the public traces takes 0.3 ms, the shortest cold one 1.3 ms.
_LEAST_NS, _TIMES_USUAL = 1_000_000, 50
_STARTS_AT_ONCE_NS = 100_000  # a launch into a full queue is long as well, but its kernel waits
_FEW, _MOST = 0.05, 0.5  # of the launches
PROFILE_LATER = "Profile after the warm-up: `torch.profiler.schedule(wait=1, warmup=2, active=5)`."


@lru_cache(maxsize=1)
def cold_calls(trace: Trace) -> Ints:
    """Return the rows of the calls that are cold starts, in order.

    A launch is cold if it is far longer than usual and its kernel's first, or if it is one of a few long ones
    within one step. Any other call, such as `cudaFree`, is cold if it is as long and lies in an operator that
    launches a kernel for the first time. Waits for the device, copies and graphs are never cold.
    """
    calls, launch = trace.calls, launch_of(trace)
    length = calls.end_ns - calls.start_ns
    launching = distinct(launch[launch != NONE], len(calls))
    if not len(launching):
        return no_ints()
    is_long = length >= max(_LEAST_NS, _TIMES_USUAL * median(length[launching]))
    if not is_long.any():
        return no_ints()
    is_first = _first_uses(trace)
    single = trace.named(calls, lambda name: is_kernel_launch(name) or "Memset" in name)
    long_launch = is_long & single & _starts_at_once(trace)
    cold = long_launch & is_first
    rare = np.flatnonzero(long_launch & ~is_first)
    if len(rare) <= _FEW * len(launching) and _in_one_step(trace, rare):
        cold[rare] = True
    outer = outermost(operator_nesting(trace), operator_of(trace))
    first_operators = np.zeros(len(trace.operators) + 1, np.bool_)  # the last is for NONE
    first_operators[outer[is_first]] = True
    first_operators[NONE] = False
    return np.flatnonzero(
        cold | (is_long & trace.named(calls, _may_set_up) & first_operators[outer])
    )


@lru_cache(maxsize=1)
def cold_starts(trace: Trace) -> Calls:
    """Return the cold calls, and the making of graphs: each capture up to its end, and each instantiation.

    Graphs that are made in more than one step are no cold starts: something makes the program capture again.
    """
    calls = trace.calls
    cold = cold_calls(trace)
    begins = np.flatnonzero(trace.named(calls, is_capture))
    instantiated = np.flatnonzero(trace.named(calls, is_instantiation))
    made = np.union1d(begins, instantiated)
    if not len(made) or not _in_one_step(trace, made):
        return calls.take(cold)
    until = calls.end_ns.copy()
    ends = np.flatnonzero(trace.named(calls, is_capture_end))
    for one in distinct(calls.thread[begins], len(trace.threads)).tolist():
        opened, closed = (rows[calls.thread[rows] == one] for rows in (begins, ends))
        place = np.searchsorted(closed, opened)
        known = place < len(closed)
        until[opened[known]] = calls.end_ns[closed[place[known]]]
    return replace(calls, end_ns=until).take(np.union1d(cold, made))


def in_cold_starts(trace: Trace, spans: Spans) -> Mask:
    """Mark the spans that begin in a cold start of their thread."""
    begin = spans.start_ns
    return cold_ns(trace, spans.thread, begin, begin + 1) > 0


def _may_set_up(name: str) -> bool:
    others = (is_kernel_launch, is_graph_launch, is_instantiation, is_capture, is_memcpy)
    return not is_synchronization(name) and not any(test(name) for test in others)


def _first_uses(trace: Trace) -> Mask:
    """Mark the calls that launch a kernel which no call before them launched."""
    launch = launch_of(trace)
    rows = np.flatnonzero(launch != NONE)
    rows = rows[np.argsort(launch[rows], kind="stable")]  # calls are ordered by start
    _, first = np.unique(trace.device_events.name[rows], return_index=True)
    found = np.zeros(len(trace.calls), np.bool_)
    found[launch[rows[first]]] = True
    return found


def _starts_at_once(trace: Trace) -> Mask:
    """Mark the calls whose work starts on the device when they return, or before."""
    launch, events = launch_of(trace), trace.device_events
    known = launch != NONE
    begin = np.full(len(trace.calls), np.iinfo(np.int64).max)
    np.minimum.at(begin, launch[known], events.start_ns[known])
    found: Mask = begin <= trace.calls.end_ns + _STARTS_AT_ONCE_NS
    return found


def _in_one_step(trace: Trace, rows: Ints) -> bool:
    marks = trace.annotations.start_ns[trace.named(trace.annotations, is_step_mark)]
    steps = np.searchsorted(marks, trace.calls.start_ns[rows], side="right")
    return len(np.unique(steps)) <= 1


def cold_ns(trace: Trace, thread: Ints, low: Ints, high: Ints) -> Ints:
    """Return how much of each [low, high) its thread spends in cold starts."""
    found = np.zeros(len(low), np.int64)
    for one, stretches in cold_stretches(trace).items():
        mine = thread == one
        found[mine] = covered_ns_of(stretches, low[mine], high[mine])
    return found


@lru_cache(maxsize=1)
def cold_stretches(trace: Trace) -> dict[int, tuple[Ints, Ints]]:
    """Return the cold starts of each thread, as stretches that lie apart."""
    cold = cold_starts(trace)
    return {
        one: union(cold.start_ns[cold.thread == one], cold.end_ns[cold.thread == one])
        for one in sorted(set(cold.thread.tolist()))
    }


def why_unsteady(trace: Trace, device: int, hosts: Sequence[Window]) -> str:
    """Return why these windows show no steady step; "" if they show one."""
    calls = trace.calls
    launching = launch_of(trace)[trace.device_events.device == device]
    launching = launching[launching != NONE]
    ran = int(inside(calls.start_ns[launching], hosts).sum())
    captured = _captured(trace)
    if inside(calls.start_ns[captured], hosts).sum() > ran:
        return "Most launches are captured into CUDA graphs and do not run"
    rows = distinct(launching, len(calls))
    rows = rows[inside(calls.start_ns[rows], hosts)]
    if np.isin(rows, cold_calls(trace)).any() and _first_uses(trace)[rows].mean() > _MOST:
        return "Most launches run their kernel for the first time, with cold starts among them"
    return ""


def _captured(trace: Trace) -> Ints:
    """Return the rows of the launches that nothing on the device belongs to, made while a graph is captured.

    Autograd launches from another thread than the one that captures.
    """
    calls, made = trace.calls, cold_starts(trace)
    made = made.take(trace.named(made, is_capture))
    if not len(made):
        return no_ints()
    launches = trace.named(calls, is_kernel_launch)
    launch = launch_of(trace)
    launches[launch[launch != NONE]] = False
    begin = calls.start_ns
    during = covered_ns_of(union(made.start_ns, made.end_ns), begin, begin + 1) > 0
    return np.flatnonzero(launches & during)


def cold_work(trace: Trace) -> tuple[bool, bool]:
    """Return whether some cold starts are first calls, and whether some make graphs."""
    return len(cold_calls(trace)) > 0, len(cold_starts(trace)) > len(cold_calls(trace))
