"""What an analysis found, and a step that cannot be captured whole -> which finding to fix next, and what it adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.estimate import Regions, estimate
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.partition import Plan, partition
from graphdoctor.strategies.evidence import Evidence
from graphdoctor.strategies.foresee import share_of
from graphdoctor.values.figures import ratio_range
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import in_place
from graphdoctor.values.recording import Iteration

_MOST_TRIED = 3  # each cuts the recording anew


def next_finding(evidence: Evidence, profile: DeviceProfile) -> str:
    """One sentence, "" where nothing stands in the way of the whole step.

    What a fix adds is predicted by cutting the step again as if the finding were not there.
    """
    blocking = [one for one in evidence.diagnosis.findings if one.effect != "replay-is-slow"]
    if not blocking:
        return ""
    iteration = evidence.recording.captured[-1]
    if len(_places(blocking)) == 1:
        whole = estimate(iteration, profile).speedup
        named = list(dict.fromkeys(f"{one.rule} {one.name}" for one in blocking))
        is_one = len(named) == 1
        return (
            f"{' and '.join(named)}{in_place(blocking[0].location)} {'is' if is_one else 'are'} all"
            f" that {'keeps' if is_one else 'keep'} the step from being one graph: without"
            f" {'it' if is_one else 'them'}, {ratio_range(whole)} is predicted."
        )
    now = share_of(_regions(evidence.plan, iteration), iteration)
    found = [(one, _without(one, evidence, profile)) for one in blocking[:_MOST_TRIED]]
    finding, regions = max(found, key=lambda pair: share_of(pair[1], iteration))
    share = share_of(regions, iteration)
    if share <= now:
        return f"{_name(blocking[0])} comes first of {len(blocking)} that bound what is captured."
    speedup = estimate(iteration, profile, regions).speedup
    return (
        f"{_name(finding)} adds the most when it is fixed next: regions with {share:.0%} of the"
        f" launches could be captured instead of {now:.0%}, {ratio_range(speedup)} is predicted."
    )


def _places(findings: Sequence[Finding]) -> set[object]:
    return {(one.rule, one.location) if one.location is None else one.location for one in findings}


def _name(finding: Finding) -> str:
    return f"{finding.rule} {finding.name}{in_place(finding.location)}"


def _without(finding: Finding, evidence: Evidence, profile: DeviceProfile) -> Regions:
    """The regions of the step if the finding's line were as harmless as the others."""
    diagnosis = evidence.diagnosis
    hits = tuple(
        (rule, hit)
        for rule, hit in diagnosis.hits
        if hit.location != finding.location or (finding.location is None and rule != finding.rule)
    )
    others = tuple(one for one in diagnosis.findings if one is not finding)
    cut = partition(evidence.recording, Diagnosis(others, hits), profile=profile)
    return _regions(cut, evidence.recording.captured[-1])


def _regions(plan: Plan, iteration: Iteration) -> Regions:
    return tuple(_of(plan, iteration))


def _of(plan: Plan, iteration: Iteration) -> Iterator[tuple[int, ...]]:
    for planned in plan.regions:
        operators = planned.ops_in(iteration.index)
        if planned.region.worthwhile and operators:
            yield operators
