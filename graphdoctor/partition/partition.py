"""A recording and its hits in, regions that can be captured out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import networkx as nx

from graphdoctor.partition.modules import forward_work, safe_modules
from graphdoctor.partition.plan import Plan, PlannedRegion
from graphdoctor.partition.regions import Piece, described, names, pieces, unified
from graphdoctor.partition.schedule import Schedule, schedule
from graphdoctor.profiles import DeviceProfile
from graphdoctor.recording import Iteration, Recording
from graphdoctor.rule import Hit

if TYPE_CHECKING:
    from graphdoctor.diagnose import Diagnosis

_Hits = Mapping[int, Sequence[tuple[str, Hit]]]


def partition(recording: Recording, diagnosis: Diagnosis, *, profile: DeviceProfile) -> Plan:
    """Cut the captured iterations at what must stay out of a graph, into as few regions as can be.

    Operators may change places where no data, random draw or host decision hinders it. What only
    makes a replay slow (GD3xx) cuts nothing.
    """
    hits = _by_iteration(diagnosis)
    schedules = [_scheduled(each, hits.get(each.index, ())) for each in recording.captured]
    found = [
        list(pieces(each, plan, _rules_by_slot(each, plan, hits.get(each.index, ()))))
        for each, plan in zip(recording.captured, schedules, strict=True)
    ]
    work = {
        each.index: forward_work(compress(each.ops, plan.launches))
        for each, plan in zip(recording.captured, schedules, strict=True)
    }
    regions = tuple(
        described(members, name, totals=work[members[0].iteration.index], profile=profile)
        for members, name in zip(unified(found), names(), strict=False)
    )
    return Plan(
        regions=regions,
        safe_modules=safe_modules(
            recording.captured,
            {index: [hit for _, hit in of_it] for index, of_it in hits.items()},
            work.values(),
        ),
        whole=not hits and _is_whole(found, regions),
        orders=tuple(
            (each.index, tuple(each.ops[position].index for position in plan.order))
            for each, plan in zip(recording.captured, schedules, strict=True)
        ),
        dependencies=tuple(
            _condensed(each, plan, regions)
            for each, plan in zip(recording.captured, schedules, strict=True)
        ),
    )


def _by_iteration(diagnosis: Diagnosis) -> _Hits:
    """The hits that cut, with their rules; a rule's number tells when it is only about speed."""
    found: dict[int, list[tuple[str, Hit]]] = defaultdict(list)
    for rule, hit in diagnosis.hits:
        if not rule.startswith("GD3"):
            found[hit.iteration].append((rule, hit))
    return dict(found)


def _scheduled(iteration: Iteration, hits: Sequence[tuple[str, Hit]]) -> Schedule:
    return schedule(
        iteration.ops,
        blocked={hit.op_index for _, hit in hits if not hit.between},
        cuts={hit.op_index for _, hit in hits if hit.between},
    )


def _rules_by_slot(
    iteration: Iteration, plan: Schedule, hits: Sequence[tuple[str, Hit]]
) -> dict[int, list[str]]:
    """Which rules keep the operators, or the host's actions, of each odd slot out of a region."""
    found: dict[int, list[str]] = defaultdict(list)
    for rule, hit in hits:
        slot = plan.cuts[hit.op_index] if hit.between else plan.slots[hit.op_index]
        found[slot].append(rule)
    return found


def _is_whole(found: Sequence[Sequence[Piece]], regions: Sequence[PlannedRegion]) -> bool:
    return len(regions) == 1 and all(len(of_iteration) == 1 for of_iteration in found)


def _condensed(
    iteration: Iteration, plan: Schedule, regions: Sequence[PlannedRegion]
) -> nx.DiGraph:
    """The dependencies between regions, and between them and the operators that no region has."""
    place: dict[int, str | int] = {index: index for index in range(len(iteration.ops))}
    for planned in regions:
        place.update(dict.fromkeys(planned.ops_in(iteration.index), planned.region.name))
    graph = nx.DiGraph()
    for position in plan.order:
        graph.add_node(place[position])
        for earlier in plan.after[position]:
            if place[earlier] != place[position]:
                graph.add_edge(place[earlier], place[position])
    return graph
