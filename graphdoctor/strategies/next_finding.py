"""Choose the finding to fix next in a step that cannot be captured whole, and predict what the fix adds."""

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
from graphdoctor.values.locations import bracketed
from graphdoctor.values.recording import Iteration
from graphdoctor.values.speed import NextFix

_MOST_TRIED = 3  # each cuts the recording anew


def next_finding(evidence: Evidence, profile: DeviceProfile) -> tuple[str, NextFix | None]:
    """One sentence and its figures; "" and None if no finding blocks the whole step.

    The gain of a fix is predicted by partitioning the step again without the finding. Without a gain
    that one fix brings, the sentence comes without figures.
    """
    blocking = [one for one in evidence.diagnosis.findings if one.effect != "replay-is-slow"]
    if not blocking:
        return "", None
    iteration = evidence.recording.captured[-1]
    if len(_places(blocking)) == 1:
        whole = estimate(iteration, profile).speedup
        rules = list(dict.fromkeys(one.rule for one in blocking))
        block, fix = ("blocks", "the fix") if len(rules) == 1 else ("block", "the fixes")
        sentence = (
            f"Only {' and '.join(rules)}{bracketed(blocking[0].location)} {block} whole-step capture."
            f" Predicted speedup after {fix}: {ratio_range(whole)}."
        )
        return sentence, NextFix(rules[0], blocking[0].location, whole, 1.0, (*rules[1:],))
    now = share_of(_regions(evidence.plan, iteration), iteration)
    found = [(one, _without(one, evidence, profile)) for one in blocking[:_MOST_TRIED]]
    finding, regions = max(found, key=lambda pair: share_of(pair[1], iteration))
    share = share_of(regions, iteration)
    if share <= now:
        first = blocking[0]
        return (
            f"Fix {first.rule}{bracketed(first.location)} first; {len(blocking)} findings block"
            " whole-step capture."
        ), None
    speedup = estimate(iteration, profile, regions).speedup
    sentence = (
        f"Fix {finding.rule}{bracketed(finding.location)} next: {share:.0%} instead of {now:.0%} of the"
        f" launches can then be in graphs. Predicted speedup: {ratio_range(speedup)}."
    )
    return sentence, NextFix(finding.rule, finding.location, speedup, share)


def _places(findings: Sequence[Finding]) -> set[object]:
    return {(one.rule, one.location) if one.location is None else one.location for one in findings}


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
