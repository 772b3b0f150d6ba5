"""Findings, regions and the eager trace of one analysis -> notes to draw into that trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.partition import Plan
from graphdoctor.rules.rule import Hit
from graphdoctor.trace import Trace
from graphdoctor.trace.annotate import Note, anchor_in
from graphdoctor.trace.api import is_step_mark
from graphdoctor.trace.arrays import Ints
from graphdoctor.trace.intervals import NONE, nest
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import place_text
from graphdoctor.values.recording import Iteration, Op

Step = tuple[int, int]


def notes_of(
    findings: Sequence[Finding],
    diagnosis: Diagnosis,
    plan: Plan,
    iteration: Iteration,
    trace: Trace,
) -> tuple[Note, ...]:
    """The notes for every profiled step; `iteration` is the recorded one that they stand for.

    A finding whose operators the step does not have is a span over the whole step.
    """
    found: list[Note] = []
    for step in steps_of(trace):
        rows = match_step(iteration.ops, trace, step)
        found.extend(_of_regions(plan, iteration, trace, rows))
        for finding in findings:
            found.extend(_of_finding(finding, diagnosis, iteration, (trace, step, rows)))
    return tuple(sorted(found, key=lambda note: note.track))


def _of_regions(plan: Plan, iteration: Iteration, trace: Trace, rows: Rows) -> Iterator[Note]:
    for planned in plan.regions:
        region = planned.region
        mine = [rows[index] for index in planned.ops_in(iteration.index) if index in rows]
        if not mine:
            continue
        yield Note(
            track=f"region {region.name}",
            name=f"region {region.name}: {region.launches} launches can be one graph",
            start_ns=int(trace.operators.start_ns[mine].min()),
            end_ns=int(trace.operators.end_ns[mine].max()),
            details=(
                ("operators", str(region.operators)),
                ("worthwhile", "yes" if region.worthwhile else "no"),
                ("why", region.reason),
                ("ends at", ", ".join(region.blocked_by) or "the step"),
            ),
        )


def _of_finding(
    finding: Finding,
    diagnosis: Diagnosis,
    iteration: Iteration,
    where: tuple[Trace, Step, Rows],
) -> Iterator[Note]:
    trace, step, rows = where
    track = f"{finding.rule} {finding.name}"
    places = {
        (hit.op_index, hit.between): hit
        for rule, hit in diagnosis.hits
        if rule == finding.rule
        and hit.iteration == iteration.index
        and hit.location == finding.location
    }
    drawn = [
        _at_hit(finding, hit, trace, rows)
        for _, hit in sorted(places.items())
        if hit.op_index in rows
    ]
    if not drawn:
        yield Note(track, finding.message, *step, details=_details(finding))
    yield from drawn


def _at_hit(finding: Finding, hit: Hit, trace: Trace, rows: Rows) -> Note:
    """Over the operator; what the host did between two operators is drawn in the time between them."""
    row, operators = rows[hit.op_index], trace.operators
    start, end = int(operators.start_ns[row]), int(operators.end_ns[row])
    anchor = anchor_in(int(operators.thread[row]), start, end)
    if hit.between:
        before = rows.get(hit.op_index - 1)
        start, end = int(operators.end_ns[before]) if before is not None else start, start
        start = min(start, end)
    return Note(
        track=f"{finding.rule} {finding.name}",
        name=f"{finding.rule} {finding.name}",
        start_ns=start,
        end_ns=end,
        details=(("what", hit.message), *_details(finding)),
        anchors=(anchor,),
    )


def _details(finding: Finding) -> tuple[tuple[str, str], ...]:
    return (
        ("rule", f"{finding.rule} {finding.name}"),
        ("effect", finding.effect),
        ("line", place_text(finding.location) if finding.location is not None else ""),
        ("operator", finding.operator),
        ("fix", finding.fix),
        ("left out by", finding.suppressed.reason if finding.suppressed is not None else ""),
    )


_LOOK_AHEAD = 50  # operators that a profiled step may have and a recorded one not
_ENOUGH = 0.8  # of the recorded operators; with fewer the trace is of something else

Rows = dict[int, int]  # the index of a recorded operator -> its row among the trace's operators


def steps_of(trace: Trace) -> tuple[tuple[int, int], ...]:
    """From when to when each ProfilerStep runs on the host, in ns."""
    spans = trace.annotations.take(trace.named(trace.annotations, is_step_mark))
    return tuple(zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True))


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
    inside = (operators.start_ns >= step[0]) & (operators.start_ns < step[1])
    rows = np.flatnonzero(inside & trace.named(operators, names.__contains__))
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
