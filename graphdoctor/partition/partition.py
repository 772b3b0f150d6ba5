"""Finds the regions of a recording that can be captured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress

import msgspec
import networkx as nx

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.partition.hazards import Hazards, Signatures, cutting, hazards
from graphdoctor.partition.regions import (
    Plan,
    PlannedRegion,
    Schedule,
    Surroundings,
    described,
    forward_work,
    lasting_storages,
    names,
    pieces,
    rules_by_slot,
    safe_modules,
    schedule,
    unified,
)
from graphdoctor.rules.rule import Hit
from graphdoctor.values.captures import Need
from graphdoctor.values.recording import Iteration, Recording

_Place = str | int  # the name of a region, or the position of an operator outside them
_Rules = frozenset[str]
_Needs = Mapping[str, Mapping[str, _Rules]]  # by region, and by the region that it needs
_NONE: _Rules = frozenset()


def with_needs(
    regions: Sequence[PlannedRegion],
    runs: Sequence[Iteration],
    schedules: Sequence[Schedule],
    blocked: Sequence[Hazards],
) -> tuple[PlannedRegion, ...]:
    """The regions, each with what it needs of others in any of the iterations that run it."""
    if len(regions) < 2:
        return tuple(regions)
    found: dict[str, dict[str, _Rules]] = defaultdict(dict)
    for iteration, plan, blocking in zip(runs, schedules, blocked, strict=True):
        for name, sources in _needs_in(iteration, plan, blocking, regions).items():
            for source, rules in sources.items():
                found[name][source] = found[name].get(source, _NONE) | rules
    names = {planned.region.name: place for place, planned in enumerate(regions)}
    made = []
    for planned in regions:
        sources = found[planned.region.name]
        needs = tuple(
            Need(name, tuple(sorted(sources[name])))
            for name in sorted(sources, key=names.__getitem__)
        )
        made.append(replace(planned, region=msgspec.structs.replace(planned.region, needs=needs)))
    return tuple(made)


def _needs_in(
    iteration: Iteration, plan: Schedule, hazards: Hazards, regions: Sequence[PlannedRegion]
) -> _Needs:
    """Rules stand between two regions on a path of operators, or where the host waits for the first one."""
    graph = dependencies(iteration, plan, regions)
    by_slot = rules_by_slot(plan, hazards)
    on_path: dict[int, Sequence[str]] = {
        **{position: by_slot[plan.slots[position]] for position in hazards.followers},
        **hazards.hit,
    }
    slots = {
        planned.region.name: plan.slots[indices[0]]
        for planned in regions
        if (indices := planned.ops_in(iteration.index))
    }
    found = _nearest(graph, {place: frozenset(rules) for place, rules in on_path.items()})
    stops = _host_stops(iteration, plan, hazards)
    latest: dict[str, int] = {}  # the last slot before this one in which a rule lets the host wait
    stop = next(stops, None)
    for name in sorted(slots, key=slots.__getitem__):
        while stop is not None and stop[0] < slots[name]:
            latest |= dict.fromkeys(stop[1], stop[0])
            stop = next(stops, None)
        for source in found[name]:
            waits = {rule for rule, slot in latest.items() if slot > slots[source]}
            found[name][source] |= waits
    return found


def _host_stops(
    iteration: Iteration, plan: Schedule, hazards: Hazards
) -> Iterator[tuple[int, Sequence[str]]]:
    """The slots where what the host does keeps all before it before all after it, in order."""
    reads = (place for place in hazards.decisive if iteration.ops[place].is_cuda)
    stops = [(plan.slots[place], hazards.hit.get(place, ())) for place in reads]
    stops += [(plan.cuts[place], rules) for place, rules in hazards.cuts.items()]
    return iter(sorted(stops))


def dependencies(
    iteration: Iteration, plan: Schedule, regions: Sequence[PlannedRegion]
) -> nx.DiGraph:
    """What must run before what, in the plan's order: regions, and the operators that no region has."""
    place: dict[int, _Place] = {index: index for index in range(len(iteration.ops))}
    for planned in regions:
        place.update(dict.fromkeys(planned.ops_in(iteration.index), planned.region.name))
    graph = nx.DiGraph()
    graph.add_nodes_from(place[position] for position in plan.order)
    graph.add_edges_from(
        (place[earlier], place[position])
        for position in plan.order
        for earlier in plan.after[position]
        if place[earlier] != place[position]
    )
    return graph


def _nearest(graph: nx.DiGraph, rules: Mapping[_Place, _Rules]) -> dict[str, dict[str, _Rules]]:
    """The regions from which each region is reached, less those that one of them needs itself.

    Ancestors are bits of one number for each place, so that thousands of regions in a row take
    little more than one pass over the edges.
    """
    names = [place for place in graph if isinstance(place, str)]
    bits = {name: 1 << at for at, name in enumerate(names)}
    sources: dict[_Place, dict[str, _Rules]] = {}
    beyond: dict[_Place, int] = {}  # what the sources of a place need in turn
    for place in nx.topological_sort(graph):
        reached: dict[str, _Rules] = {}
        covered = 0
        for earlier in graph.pred[place]:
            covered |= beyond[earlier]
            if isinstance(earlier, str):
                reached.setdefault(earlier, _NONE)
                continue
            for name, between in sources[earlier].items():
                reached[name] = reached.get(name, _NONE) | between | rules.get(earlier, _NONE)
        kept = {name: between for name, between in reached.items() if not bits[name] & covered}
        sources[place] = kept
        beyond[place] = covered
        if isinstance(place, str):  # whoever needs it need not name what it needs
            beyond[place] |= sum(bits[name] for name in kept)
    return {name: sources[name] for name in names}


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
