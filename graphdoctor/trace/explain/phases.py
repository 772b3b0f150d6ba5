"""Moments on host threads -> the phase of the step that each lies in."""

from __future__ import annotations

import numpy as np

from graphdoctor.trace.api import is_collective_mark, is_step_mark, which
from graphdoctor.trace.arrays import Ints, Spans, Trace
from graphdoctor.trace.nesting import NONE, innermost, nest

_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_BACKWARD = "autograd::engine::evaluate_function"


def phases_of(trace: Trace, threads: Ints, moments: Ints) -> list[str]:
    """What autograd runs is the backward pass; all else has the name of the outermost annotation around it.

    "" where nothing says.
    """
    backward = trace.operators.take(
        trace.rows_named(
            trace.operators, which(trace.names, lambda name: name.startswith(_BACKWARD))
        )
    )
    named = trace.annotations.take(
        trace.rows_named(trace.annotations, which(trace.names, _is_phase))
    )
    in_backward = _outermost(backward, threads, moments) != NONE
    around = _outermost(named, threads, moments)
    return [
        "the backward pass"
        if is_backward
        else _name(trace.names[named.name[row]])
        if row != NONE
        else ""
        for is_backward, row in zip(in_backward.tolist(), around.tolist(), strict=True)
    ]


def _is_phase(name: str) -> bool:
    return not is_step_mark(name) and not is_collective_mark(name)


def _name(annotation: str) -> str:
    return "the optimizer" if annotation.startswith(_OPTIMIZER) else annotation.strip("# ")


def _outermost(spans: Spans, threads: Ints, moments: Ints) -> Ints:
    """For each moment on a thread, the row of the outermost of these spans around it, or -1."""
    if not len(spans):
        return np.full(len(moments), NONE, np.int64)
    nesting = nest(spans)
    row = innermost(spans, nesting, moments, threads)
    while True:
        above = np.where(row != NONE, nesting.parent[row], NONE)
        if not (above != NONE).any():
            return row
        row = np.where(above != NONE, above, row)
