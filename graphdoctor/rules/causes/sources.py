"""A recording in, what its host read or drew, and which rule says so, out."""

from __future__ import annotations

from msgspec import Struct

from graphdoctor.rules.causes.flow import Flow
from graphdoctor.rules.causes.once import once
from graphdoctor.rules.causes.reads import cpu_reads, flow_from, host_reads, tensor_lines
from graphdoctor.values.recording import HostEvent, Recording
from graphdoctor.values.report import Location

CPU_READ = "cpu-read"  # who reports it, if anybody, depends on where the CPU tensor comes from
_EVENT_RULES = {"host-random": "GD207", "host-time": "GD208"}


class Source(Struct, frozen=True):
    """A value that came to the host, where it goes, and the rule that reports it."""

    rule: str
    flow: Flow


@once
def sources_of(recording: Recording) -> tuple[Source, ...]:
    """Host reads, random draws, clock reads and reads of CPU tensors; each place once."""
    by_place: dict[tuple[str, Location | None], Source] = {}
    for read in host_reads(recording):
        rule = "GD107" if read.flow.branches else "GD101"
        by_place.setdefault((rule, read.op.location), Source(rule, read.flow))
    for read in cpu_reads(recording):
        by_place.setdefault((CPU_READ, read.op.location), Source(CPU_READ, read.flow))
    lines = frozenset(line for iteration in recording.captured for line in tensor_lines(iteration))
    for event in host_values(recording):
        rule = _EVENT_RULES[event.kind]
        flow = flow_from(event.location, event.stack, lines)
        by_place.setdefault((rule, event.location), Source(rule, flow))
    return tuple(by_place.values())


def host_values(recording: Recording) -> tuple[HostEvent, ...]:
    """Random draws and clock reads, from the separate host run and from the iterations."""
    inside = (event for iteration in recording.captured for event in iteration.events)
    return tuple(event for event in (*recording.host, *inside) if event.kind in _EVENT_RULES)
