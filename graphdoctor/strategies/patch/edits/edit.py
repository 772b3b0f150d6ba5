"""What an edit is: one kind of change that it knows how to make to a program's lines for a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from graphdoctor.strategies.patch.source import Change
from graphdoctor.values.figures import Range, ratio_range
from graphdoctor.values.locations import Lines
from graphdoctor.values.program import Exactness, Handled, ProgramStep


def not_faster(predicted: Range) -> str:
    """Why nothing is changed for a step, as a clause."""
    return f"as the code is, graphs would not be faster: predicted {ratio_range(predicted)}"


class NoProposal(Exception):
    """An edit has nothing for a step; the text is the reason, as a clause."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to change for one step, and what that does, as a clause.

    `edit` names the edit, `exactness` says how far results may move. `replaces` are the expressions whose
    value the change binds anew, each with its file: two proposals for one of them exclude each other.
    `covers` are the file and the lines of statements that are captured with all that they call. `captured` are
    lines of them and of functions that they call, where the diagnosis is of less than what is captured; reads that
    stay outside are not in it. `captures`: the changed program replays graphs, so its trial counts them. `gain` is
    the predicted speedup of the step; None where it is measured in the report, or not known. `handled` are findings
    of the step that need no edit with the change. `rounded` are changes that capture nothing
    and round as the proposal does: the trial compares with the program that has them.
    """

    edit: str
    exactness: Exactness
    changes: tuple[Change, ...]
    clause: str
    replaces: frozenset[tuple[str, str]] = frozenset()
    captures: bool = True
    covers: tuple[str, range] | None = None
    captured: tuple[Lines, ...] = ()
    gain: Range | None = None
    handled: tuple[Handled, ...] = ()
    rounded: tuple[Change, ...] = ()


class Edit(Protocol):
    """One kind of change: its class is one file of this folder, and a row of `EDITS`.

    `exactness` is "bitwise" where results stay the same
    bit for bit, "rounding" where sums may be rounded otherwise, and "changes-results" where a program
    trains another way; such an edit is never made unasked.
    """

    name: str
    exactness: Exactness

    def propose(self, step: ProgramStep) -> Proposal:
        """Raises NoProposal, with the reason."""
        ...
