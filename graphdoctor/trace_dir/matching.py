"""Recorded operators and a trace's in; for each recorded one the row that is it in a step out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdoctor.recording import Op
from graphdoctor.trace import Trace
from graphdoctor.trace.trace import Ints

_LOOK_AHEAD = 400  # rows: an operator brings a few that lie in it, and a step a few of its own
_ENOUGH = 0.8  # of the recorded operators; with fewer the trace is of something else

Rows = dict[int, int]  # the index of a recorded operator -> its row among the trace's operators


def steps_of(trace: Trace) -> tuple[tuple[int, int], ...]:
    """From when to when each ProfilerStep runs on the host, in ns."""
    spans = trace.annotations
    return tuple(
        (int(start), int(end))
        for name, start, end in zip(
            spans.name.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True
        )
        if trace.names[name].startswith("ProfilerStep#")
    )


def match_step(ops: Sequence[Op], trace: Trace, step: tuple[int, int]) -> Rows:
    """Operators lie one after the other below autograd; what a trace has inside of one is skipped.

    Empty where too few are found for the two to be of the same step.
    """
    rows = _rows_in(trace, step)
    names = [trace.names[name] for name in trace.operators.name[rows].tolist()]
    starts = trace.operators.start_ns[rows].tolist()
    ends = trace.operators.end_ns[rows].tolist()
    found: Rows = {}
    place, free_ns = 0, step[0]
    for op in ops:
        wanted = _traced_name(op)
        for candidate in range(place, min(place + _LOOK_AHEAD, len(names))):
            if names[candidate] == wanted and starts[candidate] >= free_ns:
                found[op.index] = int(rows[candidate])
                place, free_ns = candidate + 1, ends[candidate]
                break
    return found if len(found) >= _ENOUGH * len(ops) else {}


def _rows_in(trace: Trace, step: tuple[int, int]) -> Ints:
    start = trace.operators.start_ns
    return np.flatnonzero((start >= step[0]) & (start < step[1]))


def _traced_name(op: Op) -> str:
    """ "aten::add" of "aten.add.Tensor": profilers know no overloads."""
    namespace, _, rest = op.name.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"
