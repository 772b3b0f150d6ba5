"""The values of a check of several targets, and of a comparison of reports; plain data, no torch."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from graphdoctor.values.finding import SEVERITIES, Finding, Severity
from graphdoctor.values.locations import Location
from graphdoctor.values.report import Report, Verdict

CHECK_SCHEMA_VERSION = 1

FailOn = Literal["error", "warning", "note", "never"]
FaultKind = Literal["failed", "crashed", "timed-out", "usage", "cannot"]


class Figures(Struct, frozen=True):
    """The structure of one step, which does not flake. `coverage` is a share between 0 and 1.

    `syncs` counts how often a step makes the host wait, `graphs` the graphs that hold what can be
    captured, `coverage` the share of the launches that lies in captured and verified regions.
    """

    syncs: int
    launches: int
    graphs: int
    coverage: float


class CheckedFinding(Struct, frozen=True):
    """A finding with its place in the project and whether the baseline has it.

    `path` is relative to the project and `line` counts from 1: the nearest place in the project's
    own files. `fingerprint` is the same as long as the rule, the file and the code of the line are.
    """

    finding: Finding
    severity: Severity
    is_new: bool
    path: str
    line: int
    fingerprint: str


class Breach(Struct, frozen=True):
    """A figure that is worse than its limit; `limit_from` says who set that.

    `belongs_to` is the fingerprint of the new finding that it came with, which fails the check for
    both; "" where it stands for itself.
    """

    figure: Literal["syncs", "launches", "graphs", "coverage", "speedup", "replay"]
    message: str
    limit_from: Literal["budget", "baseline", "verification"]
    belongs_to: str = ""


class Fault(Struct, frozen=True):
    """Why a target has no report. `details` are the user's own frames, as far as they are known."""

    kind: FaultKind
    exit_code: int
    message: str
    details: str = ""


class CheckedTarget(Struct, frozen=True):
    """One target: its report and what the gate says of it, or the fault that prevented a report.

    `analysis_s` is how long its analysis took in this run. It is not saved, so that the same commit
    gives the same bytes.
    """

    name: str
    path: str  # of its file, relative to the project; "" where it has none there
    report: Report | None = None
    figures: Figures | None = None
    findings: tuple[CheckedFinding, ...] = ()
    breaches: tuple[Breach, ...] = ()
    improvements: tuple[str, ...] = ()
    fault: Fault | None = None
    analysis_s: float | None = None


class StaleEntry(Struct, frozen=True, order=True):
    """An entry of the baseline that no longer occurs."""

    path: str
    rule: str
    source: str
    target: str


class Shard(Struct, frozen=True):
    """One of `count` shares of a check's targets, from 1; `of` stands for the names of them all."""

    number: int
    count: int
    of: str


class Check(Struct, frozen=True):
    """All that one check found. `prefix` leads from the repository to the project: "" or "sub/".

    `shard`: which share of the targets these are; None where they are all that were asked for.
    """

    schema_version: int
    kind: Literal["check"]
    tool_version: str
    fail_on: FailOn
    exit_code: int
    targets: tuple[CheckedTarget, ...]
    stale: tuple[StaleEntry, ...] = ()
    stale_fails: bool = True
    notes: tuple[str, ...] = ()
    prefix: str = ""
    shard: Shard | None = None


class Occurrence(Struct, frozen=True):
    """A finding, once for each line of code, with the names of the targets that reach it."""

    checked: CheckedFinding
    targets: tuple[str, ...]


def fails(severity: Severity, fail_on: FailOn) -> bool:
    """Whether a new finding of that severity fails the check."""
    return fail_on != "never" and SEVERITIES.index(severity) <= SEVERITIES.index(fail_on)


def occurrences(check: Check, *, is_new: bool | None = None) -> list[Occurrence]:
    """The findings of all targets, worst first; one that several targets reach comes once."""
    groups: dict[str, list[tuple[bool, int, str, CheckedFinding]]] = {}
    for target in check.targets:
        for one in target.findings:
            # New where it is new for any target, and then as that target reports it.
            ranked = (not one.is_new, SEVERITIES.index(one.severity), target.name, one)
            groups.setdefault(one.fingerprint, []).append(ranked)
    found = []
    for group in groups.values():
        *_, worst = min(group, key=lambda ranked: ranked[:3])
        if is_new is None or worst.is_new == is_new:
            found.append(Occurrence(worst, tuple(sorted({name for _, _, name, _ in group}))))
    return sorted(found, key=_order)


def _order(one: Occurrence) -> tuple[bool, int, str, int, str, str]:
    checked = one.checked
    return (
        not checked.is_new,
        SEVERITIES.index(checked.severity),
        checked.path,
        checked.line,
        checked.finding.rule,
        checked.fingerprint,
    )


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
