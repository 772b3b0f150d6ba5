"""Recorded operators and a trace's -> for each recorded one the row that is it in a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdoctor.trace import Trace
from graphdoctor.trace.arrays import Ints
from graphdoctor.trace.nesting import NONE, nest
from graphdoctor.values.recording import Op

_LOOK_AHEAD = 50  # operators that a profiled step may have and a recorded one not
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
    """In order, by name; what only one of the two has is passed over.

    Empty where too few are found for the two to be of the same step.
    """
    wanted = [_traced_name(op) for op in ops]
    rows = _candidates(trace, step, frozenset(wanted))
    names = [trace.names[name] for name in trace.operators.name[rows].tolist()]
    found: Rows = {}
    place = 0
    for op, name in zip(ops, wanted, strict=True):
        reach = names[place : place + _LOOK_AHEAD]
        if name in reach:
            place += reach.index(name)
            found[op.index] = int(rows[place])
            place += 1
    return found if len(found) >= _ENOUGH * len(ops) else {}


def _candidates(trace: Trace, step: tuple[int, int], names: frozenset[str]) -> Ints:
    """The step's operators of these names, less those that lie in one of the same name.

    A mode that hands an operator on lets the profiler see it twice, the second time inside the first.
    """
    operators = trace.operators
    known = np.fromiter((name in names for name in trace.names), np.bool_, len(trace.names))
    inside = (operators.start_ns >= step[0]) & (operators.start_ns < step[1])
    rows = np.flatnonzero(inside & trace.rows_named(operators, known))
    parent, name = nest(operators).parent, operators.name
    again = np.zeros(len(rows), np.bool_)
    above = parent[rows]
    while (above != NONE).any():
        again |= (above != NONE) & (name[above] == name[rows])
        above = np.where(above != NONE, parent[above], NONE)
    return rows[~again]


def _traced_name(op: Op) -> str:
    """ "aten::add" of "aten.add.Tensor": profilers know no overloads."""
    namespace, _, rest = op.name.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"
