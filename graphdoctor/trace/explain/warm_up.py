"""Find cold starts: calls that load code, tune or set up a library because a kernel runs for the first time.

A cold start happens once, so it says nothing of a steady step: shares and predictions leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from graphdoctor.trace.api import (
    is_capture,
    is_graph_launch,
    is_instantiation,
    is_kernel_launch,
    is_memcpy,
    is_step_mark,
    is_synchronization,
)
from graphdoctor.trace.arrays import Ints, Mask, Trace, distinct, median, no_ints
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
    cold = trace.calls.take(cold_calls(trace))
    return {
        one: union(cold.start_ns[cold.thread == one], cold.end_ns[cold.thread == one])
        for one in sorted(set(cold.thread.tolist()))
    }


def is_warm_up(trace: Trace, device: int, hosts: Sequence[Window]) -> bool:
    """Return whether most launches in these windows, cold starts among them, are the first of their kernel."""
    cold, calls = cold_calls(trace), trace.calls
    if not len(cold):
        return False
    launching = launch_of(trace)[trace.device_events.device == device]
    rows = distinct(launching[launching != NONE], len(calls))
    rows = rows[inside(calls.start_ns[rows], hosts)]
    return bool(np.isin(rows, cold).any() and _first_uses(trace)[rows].mean() > _MOST)
