"""Estimates what each finding costs a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.costs import is_transfer
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.predict import corner_cases
from graphdoctor.estimate.ranges import ZERO, around
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.estimate.two_lanes import Piece, lay_out
from graphdoctor.operators import waiting_backwards
from graphdoctor.values.figures import Range
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import Location, own_line
from graphdoctor.values.recording import Iteration, Op, Recording

_GONE = Piece(ZERO, ZERO, 0)


class _Place(Struct, frozen=True):
    """Where a finding is: a line, and the user's line that led there where a library's is meant."""

    file: str
    line: int
    caller: Location | None


def with_costs(
    findings: Iterable[Finding], recording: Recording, profile: DeviceProfile
) -> tuple[Finding, ...]:
    """Each finding with the time that one eager step would save if it neither waited nor copied.

    Predicted, all else being as it is: a second wait right behind takes over what the first one
    waited for, so costs do not add up. None where nothing at the finding's line waits or copies
    between host and device as far as the operators tell, and where the line is not known.
    """
    known: dict[int, _Step] = {}
    return tuple(_with_cost(finding, recording, profile, known) for finding in findings)


def _with_cost(
    finding: Finding, recording: Recording, profile: DeviceProfile, known: dict[int, _Step]
) -> Finding:
    place = _place(finding.location, finding.stack)
    if finding.effect != "capture-fails" or place is None:
        return finding
    for iteration in reversed(recording.captured):
        if iteration.index not in known:
            known[iteration.index] = _Step(iteration, profile)
        cost_us = known[iteration.index].cost_us(place)
        if cost_us is not None:
            source = f"predicted for {profile.title}"
            return replace(finding, cost_us=cost_us, cost_source=source)
    return finding


class _Step:
    """One iteration laid out once as it is, and again without what one line waits for."""

    def __init__(self, iteration: Iteration, profile: DeviceProfile) -> None:
        self._profile = profile
        self._ops = iteration.ops
        self._events = [event for event in iteration.events if event.host_waits]
        self._backwards = {op.index for op, _ in waiting_backwards(self._ops)}
        self._pieces = self._pieces_with(self._events)
        self._cases = corner_cases(self._pieces)
        self._spans: list[float] = []
        self._lines = {_line(op) for op in self._waiting()} | {_line(e) for e in self._events}

    def cost_us(self, place: _Place) -> Range | None:
        if (place.file, place.line) not in self._lines:
            return None
        left = [event for event in self._events if not _is_at(event, place)]
        pieces = list(self._pieces)
        if len(left) != len(self._events):
            pieces = list(self._pieces_with(left))
            pieces += [_GONE] * (len(self._pieces) - len(pieces))
        gone = [op for op in self._waiting() if _is_at(op, place)]
        for op in gone:
            pieces[op.index] = self._without(op, pieces[op.index])
        if not gone and len(left) == len(self._events):
            return None
        if not self._spans:
            self._spans = self._laid(self._pieces)
        saved = [
            max(0.0, old - new) for old, new in zip(self._spans, self._laid(pieces), strict=True)
        ]
        return around(saved)

    def _pieces_with(self, events: Sequence[HostEvent]) -> tuple[Piece, ...]:
        return tuple(eager_pieces(self._ops, self._profile, events=events))

    def _laid(self, pieces: Sequence[Piece]) -> list[float]:
        return [lay_out(pieces, self._profile, case).span_us for case in self._cases]

    def _waiting(self) -> Iterator[Op]:
        for op in self._ops:
            if self._pieces[op.index].is_sync or is_transfer(op) or op.index in self._backwards:
                yield op

    def _without(self, op: Op, piece: Piece) -> Piece:
        """A copy or a read is removed; an operator that computes stays and no longer waits."""
        if is_transfer(op):
            return replace(_GONE, waits_before=piece.waits_before)
        waits_before = piece.waits_before and op.index not in self._backwards
        return replace(piece, is_sync=False, waits_before=waits_before)


def _line(what: Op | HostEvent) -> tuple[str, int]:
    return (what.location.file, what.location.line) if what.location else ("", 0)


def _is_at(what: Op | HostEvent, place: _Place) -> bool:
    return _line(what) == (place.file, place.line) and _place(what.location, what.stack) == place


def _place(location: Location | None, stack: Sequence[Location]) -> _Place | None:
    if location is None:
        return None
    own = own_line((location, *stack))
    return _Place(location.file, location.line, own if own is not location else None)
