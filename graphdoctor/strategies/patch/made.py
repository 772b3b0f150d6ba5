"""What ran, step by step -> the same with one patch for all its steps, tried where that is wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace

from graphdoctor.strategies.patch.alike import Likeness, likeness, needs_another
from graphdoctor.strategies.patch.edits import (
    CannotEdit,
    Insertion,
    changed_sources,
    folder_for,
    unified,
)
from graphdoctor.strategies.patch.proposals import NoProposal, Proposal, proposal_for
from graphdoctor.strategies.patch.rerun import Task, reruns
from graphdoctor.values.program import Patch, ProgramReport, ProgramStep

Progress = Callable[[str], None]
_CAPTURE = "graphdoctor.capture("
_FAILED = ("raised", "interrupted")


Sources = dict[str, tuple[str, str]]  # by file: its text, and the text that it is to have


def with_patch(report: ProgramReport, folder: str) -> tuple[ProgramReport, Sources]:
    """The report with what to change for each step, and a diff of all that together, not tried yet."""
    if report.ending in _FAILED:
        return report, {}
    made = [_proposal(step) for step in report.steps]
    kept, steps = _without_conflicts(made, report.steps)
    report = replace(report, steps=steps)
    try:
        sources = changed_sources(each for proposal in kept for each in proposal.insertions)
    except CannotEdit as reason:
        return replace(report, patch=Patch("left out", tried=str(reason))), {}
    if not sources:
        return report, {}
    where = folder_for(sources, folder)
    return replace(report, patch=Patch("not tried", unified(sources, where), where)), sources


def tried(
    report: ProgramReport, sources: Sources, task: Task, *, time_limit_s: float, progress: Progress
) -> ProgramReport:
    """The report with its diff if the program gives the same results with it, and else without.

    The program of the task is run again, as it is and changed, in processes of its own, each for
    `time_limit_s` at the most.
    """
    patch = report.patch
    if patch is None or not patch.diff:
        return report
    after = {file: text for file, (_, text) in sources.items()}
    captures = _CAPTURE in patch.diff
    found = _compared(task, after, time_limit_s, progress, captures=captures)
    if found.is_same:
        return replace(report, patch=replace(patch, status="same results", tried=found.sentence))
    return replace(report, patch=Patch("left out", tried=found.sentence))


def _compared(
    task: Task,
    after: dict[str, str],
    time_limit_s: float,
    progress: Progress,
    *,
    captures: bool,
) -> Likeness:
    """The changed program takes as many steps as the program as it is took in half of its time."""
    with reruns(time_limit_s) as run:
        progress("running the program again, as it is")
        plain = run(dataclasses.replace(task, enough_s=time_limit_s / 2))
        most = plain.steps if plain.was_stopped else task.most_steps
        same = dataclasses.replace(task, most_steps=most)
        progress("running the changed program")
        changed = run(dataclasses.replace(same, sources=after))
        if not needs_another(plain, changed):
            return likeness(plain, changed, captures=captures)
        progress("running the program as it is once more")
        return likeness(plain, changed, run(same), captures=captures)


def _proposal(step: ProgramStep) -> Proposal | str:
    try:
        return proposal_for(step)
    except NoProposal as reason:
        return str(reason)


def _without_conflicts(
    made: list[Proposal | str], steps: tuple[ProgramStep, ...]
) -> tuple[list[Proposal], tuple[ProgramStep, ...]]:
    """One capture for each variable: that of a training step before that of other calls of the same module."""
    order = sorted(range(len(steps)), key=lambda i: steps[i].mode != "training")
    taken: dict[tuple[str, int, str], str] = {}  # what is put below a line for a variable
    kept: dict[int, Proposal] = {}
    changed = list(steps)
    for number in order:
        proposal, step = made[number], steps[number]
        if isinstance(proposal, str):
            changed[number] = replace(step, no_change="" if step.report is None else proposal)
            continue
        own = {_place(each): each.text for each in proposal.insertions}
        clash = next((place for place in own if taken.get(place, own[place]) != own[place]), None)
        if clash is not None:
            name = clash[2]
            changed[number] = replace(
                step,
                no_change=f"`{name}` is captured for training, and its other calls stay eager",
            )
            continue
        taken |= own
        kept[number] = proposal
        changed[number] = replace(step, change=proposal.sentence)
    return [kept[number] for number in sorted(kept)], tuple(changed)


def _place(each: Insertion) -> tuple[str, int, str]:
    return each.file, each.line, each.text.partition("=")[0].strip()
