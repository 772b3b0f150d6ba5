"""Count calls of the captured callables that are alive, for observers that read the counts meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar
from weakref import ref


class Tallied(Protocol):
    """Something whose calls are replayed, or run eagerly for a reason."""

    @property
    def name(self) -> str: ...

    @property
    def replayed(self) -> int: ...

    def fallbacks(self) -> Counter[str]: ...


class Audit(Protocol):
    """Something that looks for faults in replays of the program."""

    is_paused: bool


BUSY, RELEASED = "another call was under way", "it was released"  # reasons
WARMUP_CALLS = 3  # as torch advises before a capture; the first calls create state
# The reason of calls that a model captured for inference does not replay.
NEEDS_GRADIENTS = (
    "gradients are wanted, and the model was captured without them: call it under torch.no_grad(), "
    'or capture it with mode="training"'
)

_T = TypeVar("_T")
# Gets the step, the flags among its arguments, of which each value has its own graph, and the call.
Around = Callable[[Tallied, tuple[bool, ...], Callable[[], object]], object]

AROUND: list[Around] = []  # what makes the calls of captured steps, the first for all
_LIVING: list[ref[Tallied]] = []
_KEEPING: list[list[Tallied]] = []
_AUDITS: list[Audit] = []


@contextmanager
def _among(those: list[_T], one: _T) -> Iterator[_T]:
    those.append(one)
    try:
        yield one
    finally:
        those.remove(one)


def around_steps(around: Around) -> AbstractContextManager[object]:
    """In the block, `around` makes the calls of captured steps."""
    return _among(AROUND, around)


def audited(audit: Audit) -> AbstractContextManager[object]:
    """In the block, an audit looks for faults in each replay."""
    return _among(_AUDITS, audit)


def is_auditing() -> bool:
    """Whether a graph that is captured now is audited."""
    return bool(_AUDITS)


@contextmanager
def audits_paused() -> Iterator[None]:
    """In the block, replays are not the program's: a study makes them, of states that it restores."""
    paused = [each for each in _AUDITS if not each.is_paused]
    for each in paused:
        each.is_paused = True
    try:
        yield
    finally:
        for each in paused:
            each.is_paused = False


def register(tallied: Tallied) -> None:
    """Let `tallies` find it as long as it lives."""
    _LIVING.append(ref(tallied, _LIVING.remove))
    for kept in _KEEPING:
        kept.append(tallied)


def kept_tallies() -> AbstractContextManager[list[Tallied]]:
    """All that are made in the block, also those that nobody else holds any more."""
    return _among(_KEEPING, [])


def tallies() -> list[Tallied]:
    """All that live, those made first first."""
    found = (each() for each in list(_LIVING))
    return [each for each in found if each is not None]
