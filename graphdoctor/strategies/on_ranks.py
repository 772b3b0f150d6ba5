"""A strategy's row on each rank of a step -> one row: ranks use a graph together, or none does."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from graphdoctor.device.observe.meeting import MEETING
from graphdoctor.values.speed import StrategyOutcome, StrategyStatus

# From the worst; what is missing here is no failure of a rank.
_WORST = ("wrong", "failed", "refused", "not-verified", "timed-out", "unfit")


class _Said(msgspec.Struct, frozen=True):
    status: StrategyStatus
    reason: str


def as_on_all_ranks(row: StrategyOutcome) -> StrategyOutcome:
    """The row as the rank has it where it came off worst; every rank has to ask.

    Where one broke off, the others may wait for it still: all begin to count anew.
    """
    MEETING.afresh()
    mine = _Said(row.status, row.reason)
    answers = MEETING.answers(msgspec.json.encode(mine).decode())
    ranks = [msgspec.json.decode(answer, type=_Said) for answer in answers]
    worst = min(ranks, key=lambda said: _place(said.status))
    if _place(worst.status) == _place(row.status):
        return row
    reason = f"on rank {ranks.index(worst)}: {worst.reason}"
    return replace(row, status=worst.status, reason=reason, code="")


def _place(status: StrategyStatus) -> int:
    return _WORST.index(status) if status in _WORST else len(_WORST)
