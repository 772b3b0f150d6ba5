"""Accept the outcomes of today in a baseline, and say what the baseline grows by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from graphdoctor.check.baseline import Accepted, Baseline, Entry, make
from graphdoctor.check.gate import TEST_MARK, Outcome, accepted_of, entries_of, matters
from graphdoctor.check.settings.files import Project
from graphdoctor.check.step_figures import beyond_baseline
from graphdoctor.values.check import Fault


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`growth` are sentences about what the old baseline did not have; `dropped` counts entries."""

    baseline: Baseline
    growth: tuple[str, ...]
    added: int
    dropped: int


def accept(
    outcomes: Sequence[Outcome], old: Baseline, project: Project, *, is_complete: bool
) -> Acceptance:
    """Everything found today; what a target that failed had before stays."""
    entries, targets = _kept(outcomes, old, is_complete)
    growth: list[str] = []
    for outcome in outcomes:
        accepted = accepted_of(outcome)
        if accepted is None:
            continue
        found = entries_of(outcome, project)
        mattering = [entry for entry in found if matters(entry, project.settings)]
        growth += _growth(mattering, accepted, old)
        entries.update(found)
        targets[accepted.target] = accepted
    return _acceptance(make(entries, targets.values()), old, growth)


def prune(
    outcomes: Sequence[Outcome], old: Baseline, project: Project, *, is_complete: bool
) -> Acceptance:
    """Only less than before: entries that no longer occur go, figures that got better are kept."""
    entries, targets = _kept(outcomes, old, is_complete)
    for outcome in outcomes:
        accepted = accepted_of(outcome)
        if accepted is None:
            continue
        entries.update(old.entries.intersection(entries_of(outcome, project)))
        if accepted.target in old.targets:
            targets[accepted.target] = old.targets[accepted.target]
        before = old.figures_of(accepted.target, device=accepted.device)
        if before is not None:
            targets[accepted.target] = _stricter(before, accepted)
    return _acceptance(make(entries, targets.values()), old, [])


def _acceptance(new: Baseline, old: Baseline, growth: list[str]) -> Acceptance:
    added, dropped = len(new.entries - old.entries), len(old.entries - new.entries)
    return Acceptance(new, tuple(growth), added, dropped)


def _growth(found: Sequence[Entry], accepted: Accepted, old: Baseline) -> Iterator[str]:
    for entry in sorted(found):
        if entry not in old.entries:
            yield f"{accepted.target}: {entry.rule} in {entry.path}: {entry.source}"
    before = old.figures_of(accepted.target, device=accepted.device)
    if before is not None:
        for breach in beyond_baseline(accepted.figures, before.figures):
            yield f"{accepted.target}: {breach.message}"


def _kept(
    outcomes: Sequence[Outcome], old: Baseline, is_complete: bool
) -> tuple[set[Entry], dict[str, Accepted]]:
    """What a target had that could not be analysed, was not asked for, or is a test."""
    has_failed = {one.target.name: isinstance(one.result, Fault) for one in outcomes}

    def stays(name: str) -> bool:
        return has_failed.get(name, not is_complete or TEST_MARK in name)

    entries = {entry for entry in old.entries if stays(entry.target)}
    return entries, {name: one for name, one in old.targets.items() if stays(name)}


def _stricter(before: Accepted, now: Accepted) -> Accepted:
    """Of each figure the better; the others say what was accepted."""
    return msgspec.structs.replace(
        before,
        syncs=min(before.syncs, now.syncs),
        launches=min(before.launches, now.launches),
        graphs=now.graphs if now.coverage >= before.coverage else before.graphs,
        coverage=max(before.coverage, now.coverage),
        verdict=before.verdict if now.verdict == "unsafe" else now.verdict,
    )
