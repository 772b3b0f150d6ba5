"""Explain an error that ended a capture: what went wrong first, and the user's line."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from graphdoctor.target.frames import is_machinery
from graphdoctor.target.user_code import first_line, in_short, is_out_of_memory
from graphdoctor.values.captures import CaptureOutcome, Scope
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.locations import Location

# What CUDA says -> what it means; in the order in which the texts are looked for.
_IN_WORDS = (
    (
        "operation not permitted when stream is capturing",
        "the host waited for the device, or called something else that CUDA forbids, "
        "while the graph was recorded",
    ),
    (
        "operation failed due to a previous error during capture",
        "a forbidden call had already spoilt the recording: its error was caught in the step, "
        "or another thread made it",
    ),
    (
        "capturing stream has unjoined work",
        "work on another stream was not joined back before the step ended",
    ),
    (
        "dependency created on uncaptured work in another stream",
        "the step waited for work that had been started outside it, on another stream",
    ),
    (
        "would make the legacy stream depend on a capturing blocking stream",
        "work went to the default stream, which cannot be part of a recording",
    ),
    (
        "operation not permitted on an event last recorded in a capturing stream",
        "the CPU queried an event that the capture recorded",
    ),
)
_SECONDARY = _IN_WORDS[1][0]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A capture that was refused: its first cause in words, and the user's line."""

    reason: str
    location: Location | None = None

    def outcome(self, scope: Scope) -> CaptureOutcome:
        """The row in the report; `scope` is what was to be captured."""
        return CaptureOutcome(
            scope=str(scope), status="refused", reason=self.reason, location=self.location
        )


def refusal_of(error: BaseException) -> Refusal:
    """Why the capture was refused. Raises the error again if it is graphdoctor's own, or Ctrl-C."""
    if isinstance(error, (GraphDoctorError, KeyboardInterrupt, GeneratorExit)):
        raise error
    cause = true_cause(error)
    return Refusal(in_words(cause), location_of(cause))


def true_cause(error: BaseException) -> BaseException:
    """The error that came first.

    Ending a spoilt capture raises an error of its own, with the one from the step as its context.
    Where the step's code turned CUDA's refusal into another error, the refusal is the cause.
    """
    chain = _chain(error)
    refusals = [link for link in chain if is_refusal(link)]
    if refusals:
        return refusals[-1]
    return next((link for link in chain if _SECONDARY not in str(link)), error)


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def is_refusal(error: BaseException) -> bool:
    """Whether CUDA refused what the step did while it was being captured."""
    text = str(error)
    return any(known in text for known, _ in _IN_WORDS if known != _SECONDARY)


def in_words(error: BaseException) -> str:
    """What happened, in one sentence for people, with the error's own first line."""
    text, first = str(error), first_line(error)
    if isinstance(error, SystemExit):
        return f"the step ended the interpreter with exit code {error.code!r}"
    if is_out_of_memory(error):
        return f"memory ran out: a graph keeps the memory of its step for itself ({first})"
    for known, meaning in _IN_WORDS:
        if known in text:
            # The emulated device says which operator it was; CUDA's own text has no more to tell.
            detail = first.partition(known)[2].strip(" ()")
            return f"{meaning} ({known}: {detail})" if detail else f"{meaning} ({first})"
    return in_short(error)


def location_of(error: BaseException) -> Location | None:
    """The innermost line outside torch and graphdoctor that the error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not is_machinery(frame.filename):
            return Location(frame.filename, frame.lineno or 0, frame.name)
    return None
