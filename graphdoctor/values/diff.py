"""The values of a diff: what a change did to each target; plain data."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.report import Verdict


class Moved(Struct, frozen=True):
    """A finding whose code is the same on another line."""

    finding: Finding
    before: Location


class RegionChange(Struct, frozen=True):
    """What became of a region; names are those of the report that has it."""

    kind: Literal["grown", "shrunk", "split", "merged", "lost", "new"]
    text: str


class FigureChange(Struct, frozen=True):
    """A figure in words; `is_better` is None where the change is neither."""

    name: str
    before: str
    after: str
    is_better: bool | None


class TargetChange(Struct, frozen=True):
    """One target before and after. A target that one side lacks has no verdict there."""

    name: str
    before: Verdict | None
    after: Verdict | None
    new: tuple[Finding, ...] = ()
    gone: tuple[Finding, ...] = ()
    moved: tuple[Moved, ...] = ()
    regions: tuple[RegionChange, ...] = ()
    figures: tuple[FigureChange, ...] = ()

    @property
    def is_same(self) -> bool:
        parts = (self.new, self.gone, self.moved, self.regions, self.figures)
        return self.before == self.after and not any(parts)


class Changes(Struct, frozen=True):
    """All targets of both sides, by name; `before` and `after` are what the sides are called."""

    before: str
    after: str
    targets: tuple[TargetChange, ...]
    notes: tuple[str, ...] = ()
