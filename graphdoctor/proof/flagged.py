"""Findings about operators -> those that the GPU refutes: it captures just these, and replays them rightly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.partition import PlannedRegion
from graphdoctor.proof.regions import verify_regions
from graphdoctor.record.session import Session
from graphdoctor.rules.rule import Hit
from graphdoctor.values.captures import CaptureOutcome, Region
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Recording


def refuted_alone(
    session: Session, recording: Recording, diagnosis: Diagnosis, *, whole: CaptureOutcome
) -> tuple[Finding, ...]:
    """Findings for which nothing speaks but that an operator is refused, and it was not.

    `whole` is the refused capture of the whole step: what stands on its line is confirmed.
    """
    regions = {
        place: _region(recording, hits)
        for place, hits in _accused(diagnosis).items()
        if place != whole.location and _has_results(recording, hits)
    }
    if not regions:
        return ()
    found = verify_regions(session, recording.captured, tuple(regions.values()), exact=False)
    cleared = {place for place, outcome in zip(regions, found, strict=True) if outcome.is_verified}
    return tuple(one for one in diagnosis.findings if one.location in cleared)


def _accused(diagnosis: Diagnosis) -> dict[Location, list[Hit]]:
    """The lines of which everything that is said is that their operators are refused."""
    places: dict[Location, list[Hit]] = {}
    for _, hit in diagnosis.hits:
        if hit.location is not None:
            places.setdefault(hit.location, []).append(hit)
    return {place: hits for place, hits in places.items() if all(hit.refused_alone for hit in hits)}


def _has_results(recording: Recording, hits: Sequence[Hit]) -> bool:
    """Whether each leaves something on the device: of an operator that only reads, a replay shows nothing."""
    iterations = {iteration.index: iteration for iteration in recording.captured}
    operators = (iterations[hit.iteration].ops[hit.op_index] for hit in hits)
    return all(any(use.is_cuda for use in op.outputs) for op in operators)


def _region(recording: Recording, hits: Sequence[Hit]) -> PlannedRegion:
    """The operators as a region of their own, in every iteration that has them."""
    spans = tuple(_spans(recording.captured, hits))
    ran = [iteration for iteration in recording.captured if iteration.index in dict(spans)]
    place = hits[0].location
    region = Region(
        name=hits[0].operator,
        operators=len(spans[0][1]),
        launches=len(spans[0][1]),
        phases=(hits[0].phase,),
        modules=(),
        first=place,
        last=place,
        blocked_by=(),
        iterations=tuple(index for index, _ in spans),
        worthwhile=False,
        reason="tried by itself",
    )
    return PlannedRegion(region, spans, ran[0])


def _spans(
    iterations: Sequence[Iteration], hits: Sequence[Hit]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for iteration in iterations:
        own = {hit.op_index for hit in hits if hit.iteration == iteration.index}
        if own:
            yield iteration.index, tuple(sorted(own))
