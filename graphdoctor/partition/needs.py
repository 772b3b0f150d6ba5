"""The dependencies of each iteration -> which earlier regions each region needs, and what stands between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import networkx as nx

from graphdoctor.partition.hazards import Hazards
from graphdoctor.partition.plan import PlannedRegion
from graphdoctor.partition.regions import rules_by_slot
from graphdoctor.partition.schedule import Schedule
from graphdoctor.values.captures import Need
from graphdoctor.values.recording import Iteration

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
    for iteration, plan, hazards in zip(runs, schedules, blocked, strict=True):
        for name, sources in _needs_in(iteration, plan, hazards, regions).items():
            for source, rules in sources.items():
                found[name][source] = found[name].get(source, _NONE) | rules
    names = {planned.region.name: place for place, planned in enumerate(regions)}
    return tuple(_with(planned, found[planned.region.name], names) for planned in regions)


def _with(
    planned: PlannedRegion, sources: Mapping[str, _Rules], names: Mapping[str, int]
) -> PlannedRegion:
    needs = tuple(
        Need(name, tuple(sorted(sources[name]))) for name in sorted(sources, key=names.__getitem__)
    )
    return replace(planned, region=msgspec.structs.replace(planned.region, needs=needs))


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
