"""Findings, regions and the eager trace of one analysis -> notes to draw into that trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.partition import Plan
from graphdoctor.reporters.tensorboard.matching import Rows, match_step, steps_of
from graphdoctor.rules.rule import Hit
from graphdoctor.trace import Trace
from graphdoctor.trace.annotations import Note, anchor_in
from graphdoctor.values.locations import place_text
from graphdoctor.values.recording import Iteration
from graphdoctor.values.report import Finding

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
