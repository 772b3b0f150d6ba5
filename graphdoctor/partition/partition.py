"""A recording and its hits -> the regions that can be captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.partition.hazards import Hazards, Signatures, cutting, hazards
from graphdoctor.partition.needs import with_needs
from graphdoctor.partition.plan import Plan
from graphdoctor.partition.regions import (
    Surroundings,
    described,
    forward_work,
    lasting_storages,
    names,
    pieces,
    safe_modules,
    unified,
)
from graphdoctor.partition.schedule import schedule
from graphdoctor.rules.rule import Hit
from graphdoctor.values.recording import Iteration, Recording


def partition(recording: Recording, diagnosis: Diagnosis, *, profile: DeviceProfile) -> Plan:
    """Cut the captured iterations at what must stay out of a graph, into as few regions as can be.

    Operators may change places where no data, random draw or host decision hinders it. What only
    makes a replay slow (GD3xx) cuts nothing.
    """
    runs = recording.captured
    hits, signatures = cutting(_as_reported(diagnosis)), Signatures()
    blocked = hazards(recording, hits, signatures)
    schedules = [schedule(each.ops, found) for each, found in zip(runs, blocked, strict=True)]
    found = [
        list(pieces(each, plan, hazard, signatures=signatures.of(each)))
        for each, plan, hazard in zip(runs, schedules, blocked, strict=True)
    ]
    work = {
        each.index: forward_work(compress(each.ops, plan.launches))
        for each, plan in zip(runs, schedules, strict=True)
    }
    around = Surroundings(work, lasting_storages(runs))
    regions = tuple(
        described(members, name, surroundings=around, profile=profile)
        for members, name in zip(unified(found), names(), strict=False)
    )
    return Plan(
        regions=with_needs(regions, runs, schedules, blocked),
        safe_modules=safe_modules(work.values(), _unsafe_places(runs, hits, blocked)),
        whole=not any(each.hit or each.cuts or each.followers for each in blocked)
        and len(regions) == 1
        and all(len(of_iteration) == 1 for of_iteration in found),
    )


def _as_reported(diagnosis: Diagnosis) -> Iterator[tuple[str, Hit]]:
    """The hits under the rules that the report lists: where one rule speaks for another, under that one."""
    listed: dict[object, list[str]] = {}
    for finding in diagnosis.findings:
        if finding.effect != "replay-is-slow":
            listed.setdefault(finding.location, []).append(finding.rule)
    for rule, hit in diagnosis.hits:
        speaking = listed.get(hit.location, [rule])
        for name in [rule] if rule in speaking else dict.fromkeys(speaking):
            yield name, hit


def _unsafe_places(
    runs: Sequence[Iteration], hits: Sequence[tuple[str, Hit]], blocked: Sequence[Hazards]
) -> Iterator[str]:
    """The modules in whose forward pass something stands in the way."""
    for _, hit in hits:
        if hit.between:
            yield hit.module
    for iteration, found in zip(runs, blocked, strict=True):
        for position in (*found.hit, *found.followers):
            if iteration.ops[position].phase == "forward":
                yield iteration.ops[position].module
