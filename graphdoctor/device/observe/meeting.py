"""What the ranks of a step tell each other beside it: which collective each comes to, before it runs.

A collective that other ranks do not call never ends, on a GPU as here. So each rank writes into the
store, where the ranks of the default group met, what it is about to call, and waits for what the others of
the collective's group wrote. Who waits for a rank that waits for him elsewhere knows of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import msgspec
from torch import distributed as dist

from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.target.frames import locate
from graphdoctor.target.user_code import in_short
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.locations import Location, file_line

_Answer = TypeVar("_Answer")
_LIMIT_S = 120.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02  # between two looks
_PREFIX = "graphdoctor"
_ASIDE = ""  # the group of what graphdoctor itself asks all ranks
_AFRESH = "afresh"  # the group of a meeting after which nothing counts that was asked before
_QUESTION = "question:"
_GONE = "another rank ended, or is too slow to compare its step with"
_OUT_OF_STEP = "the ranks no longer run the same steps, and cannot be compared"


class RanksDiffer(EmulationLimit):
    """Ranks call other collectives, or with other sizes: `location` is that of the lowest rank."""

    def __init__(self, message: str, location: Location | None) -> None:
        super().__init__(message)
        self.location = location


class RankFailed(UserCodeError):
    """A run of the step failed on another rank."""


class _At(msgspec.Struct, frozen=True):
    """Where a rank waits: for the `number`th time in a group, with what it says there."""

    group: str
    number: int
    ranks: tuple[int, ...]
    says: str
    place: Location | None
    run: int
    failed: str = ""

    @property
    def called(self) -> str:
        """For a sentence that begins with the rank."""
        if not self.group:
            return "ends the step"
        at = f" at {file_line(self.place)}" if self.place is not None else ""
        return f"calls {self.says}{at}"


class _Difference(msgspec.Struct, frozen=True):
    """What parts the ranks, in the words that each of them says."""

    message: str
    place: Location | None


class Meeting:
    """How this process, as one of the ranks, meets the others; each group counts what its ranks did together.

    A step's device has it, as `device.meeting`.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._runs = 0

    def begin(self) -> None:
        """A new default group has a new store."""
        self._counts.clear()
        self._runs = 0

    @property
    def has_others(self) -> bool:
        """Whether this process is one of several ranks."""
        return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def collective(self, says: str, group: Any) -> None:
        """All ranks of the group come to the same one, or this raises `RanksDiffer` on all of them."""
        if not self.has_others:
            return
        ranks = tuple(dist.get_process_group_ranks(group))
        if len(ranks) > 1:
            name = str(group.group_name)
            found = self._told(name, ranks, says, place=locate(2).location)
            if len({at.says for at in found.values()}) > 1:
                raise self._difference(found)

    @property
    def _differ(self) -> str:
        """Where the first rank that sees a difference says so."""
        return f"{_PREFIX}/differ/{self._counts.get(_AFRESH, 0)}"

    @contextmanager
    def run(self) -> Iterator[None]:
        """A run of the step, at whose end all ranks wait for each other.

        Raises UserCodeError where it failed on another rank, so that no rank goes on alone.
        """
        try:
            yield
        except RanksDiffer:
            raise
        except Exception as error:
            self._end_run(in_short(error))
            raise
        self._end_run("")

    def _end_run(self, failed: str) -> None:
        if not self.has_others:
            return
        found = self._told(_ASIDE, _everybody(), "end", failed=failed)
        self._runs += 1
        if not failed:
            self._check_failed(found)

    def everywhere(self, is_so: bool) -> bool:
        """Whether it is so on all ranks, each of which has to ask."""
        return self.agree(str(is_so), expected=str(True))

    def agree(self, what: str, *, expected: str | None = None) -> bool:
        """Whether all ranks say the same, or what is expected."""
        wanted = what if expected is None else expected
        return all(answer == wanted for answer in self.answers(what, str))

    def common(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names that all ranks have, each of which has to ask."""
        others = [set(answer) for answer in self.answers([*names], list[str])]
        return tuple(name for name in names if all(name in other for other in others))

    def answers(self, mine: _Answer, kind: type[_Answer]) -> list[_Answer]:
        """What each rank answers, by rank; all of them have to ask."""
        answers = self._answers(msgspec.json.encode(mine).decode(), _ASIDE)
        return [msgspec.json.decode(answer, type=kind) for answer in answers]

    def afresh(self) -> None:
        """Let all ranks go on from here, also where some ended what the others waited for them in."""
        runs = [int(answer) for answer in self._answers(str(self._runs), _AFRESH)]
        if len(runs) > 1:
            self._counts = {_AFRESH: self._counts[_AFRESH]}
            self._runs = 1 + max(runs)

    def _answers(self, mine: str, group: str) -> list[str]:
        if not self.has_others:
            return [mine]
        found = self._told(group, _everybody(), f"{_QUESTION}{mine}")
        return [found[rank].says.removeprefix(_QUESTION) for rank in sorted(found)]

    def _told(
        self,
        group: str,
        ranks: tuple[int, ...],
        says: str,
        *,
        place: Location | None = None,
        failed: str = "",
    ) -> dict[int, _At]:
        """What each of these ranks says there, by rank."""
        number = self._counts.get(group, 0)
        mine = _At(group, number, ranks, says, place, self._runs, failed)
        store, me = dist.distributed_c10d._get_default_store(), dist.get_rank()
        text = msgspec.json.encode(mine).decode()
        store.set(f"{_PREFIX}/at/{me}", text)
        store.set(_key(mine, me), text)
        found = {me: mine}
        try:
            for rank in ranks:
                found[rank] = found.get(rank) or self._of(store, mine, rank)
        except dist.DistError as error:
            raise EmulationLimit(_GONE) from error
        self._counts[group] = number + 1
        return found

    def _of(self, store: Any, mine: _At, rank: int) -> _At:
        """What a rank says where this one waits for it."""
        key, begun_s, pause_s = _key(mine, rank), time.monotonic(), 0.0
        while not store.check([key]):
            time.sleep(pause_s)
            pause_s = min(pause_s + _PAUSE_S, _LONGEST_PAUSE_S)
            if pause_s == _LONGEST_PAUSE_S:
                self._look(store, mine, rank)
            if time.monotonic() - begun_s > _LIMIT_S:
                raise EmulationLimit(_GONE)
        return msgspec.json.decode(store.get(key), type=_At)

    def _look(self, store: Any, mine: _At, rank: int) -> None:
        """Raise where that rank waits for this one, or where others found that ranks differ."""
        me = dist.get_rank()
        if store.check([self._differ]):
            raise _said(msgspec.json.decode(store.get(self._differ), type=_Difference))
        if not store.check([f"{_PREFIX}/at/{rank}"]):
            return
        other = msgspec.json.decode(store.get(f"{_PREFIX}/at/{rank}"), type=_At)
        if other.group == mine.group or me not in other.ranks:
            return
        if self._counts.get(other.group, 0) > other.number or store.check([_key(mine, rank)]):
            return  # it has gone on since
        if mine.failed:
            return  # it will see that, and come
        self._check_failed({rank: other, me: mine})
        if any(at.says.startswith(_QUESTION) for at in (mine, other)):
            raise EmulationLimit(_OUT_OF_STEP)
        raise self._difference({rank: other, me: mine})

    def _check_failed(self, found: dict[int, _At]) -> None:
        for rank, at in found.items():
            if at.failed and rank != dist.get_rank():
                failed = RuntimeError(f"rank {rank} failed: {at.failed}")
                raise RankFailed(f"running the step failed on rank {rank}: {at.failed}") from failed

    def _difference(self, found: dict[int, _At]) -> RanksDiffer:
        """In the same words on all ranks; also for those that wait for these."""
        ranks = sorted(found)
        first = found[ranks[0]]
        other = next((rank for rank in ranks if found[rank].called != first.called), ranks[-1])
        groups = {rank: f" in group {at.group}" for rank, at in found.items() if at.group}
        if len(set(groups.values())) == 1:  # of which nobody needs to hear
            groups = {}
        said = [f"rank {r} {found[r].called}{groups.get(r, '')}" for r in (ranks[0], other)]
        difference = _Difference(", and ".join(said), first.place or found[other].place)
        store = dist.distributed_c10d._get_default_store()
        store.set(self._differ, msgspec.json.encode(difference).decode())
        return _said(difference)


def _said(found: _Difference) -> RanksDiffer:
    return RanksDiffer(found.message, found.place)


def _key(at: _At, rank: int) -> str:
    run = 0 if at.group == _AFRESH else at.run  # ranks need not agree on it there
    return f"{_PREFIX}/{at.group}/{run}/{at.number}/{rank}"


def _everybody() -> tuple[int, ...]:
    return tuple(range(dist.get_world_size()))


class _Alone(Meeting):
    """Of what no other rank runs, whatever groups this process belongs to."""

    @property
    def has_others(self) -> bool:
        return False


ALONE: Meeting = _Alone()


@cache
def meeting_of_process() -> Meeting:
    """What all devices of this process share: it has one default group, whose store remembers each answer."""
    return Meeting()
