"""Says what a report cannot vouch for: doubts, with which a step is not safe, and other remarks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from graphdoctor.rules.causes.words import place_words
from graphdoctor.target import Target
from graphdoctor.values.figures import count_text, names_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import (
    AttentionDropout,
    CaptureQuery,
    LaterStepDiffers,
    LaterStepRaises,
    OutsideQuery,
    PythonEvent,
    PythonStateChanged,
    WorkForThread,
)
from graphdoctor.values.locations import Location, bracketed, file_line
from graphdoctor.values.recording import Iteration, Recording


def doubts_of(recording: Recording) -> tuple[str, ...]:
    """Why a replay that was verified here may still differ from eager elsewhere, or later."""
    return (
        *_fallbacks(recording),
        *raises_later(recording),
        *_untried(recording),
    )


def limits_of(
    target: Target, recording: Recording, doubts: Sequence[str], stopped: Sequence[str]
) -> tuple[str, ...]:
    """All that could not be seen or does not hold for every input, with the doubts among it."""
    return (
        *recording.limits,
        *_parting(target),
        *_numbers_given(recording),
        *doubts,
        *about_stopped(stopped),
        *about_outside(recording),
        *_two_paths(recording),
        *about_other_dropout(recording),
        *_held_by_nobody(recording),
    )


def _fallbacks(recording: Recording) -> Iterator[str]:
    """Where the emulated result may not be a GPU's: each reason once, with its first place."""
    seen: dict[str, Location | None] = {}
    for iteration in recording.captured:
        for op in iteration.ops:
            if op.fallback is not None:
                seen.setdefault(op.fallback, op.location)
    for reason, place in seen.items():
        yield f"{reason}{bracketed(place)}"


def _untried(recording: Recording) -> Iterator[str]:
    if "later steps" in recording.unreached and not any(
        isinstance(event, LaterStepDiffers) for event in recording.host
    ):
        yield (
            "the budget ended before all later steps were tried, and each step changes Python state or reads"
            " a clock"
        )


def _parting(target: Target) -> Iterator[str]:
    """That nothing is said of values for which the step does something else."""
    if target.parting_inputs:
        yield (
            f"The step takes another path for other values of {names_text(target.parting_inputs)}"
            f"{target.parting_place}: what is said here holds for the numbers as given."
        )


def _numbers_given(recording: Recording) -> Iterator[str]:
    """Python numbers among the inputs: they are frozen at capture."""
    given = {leaf.path: leaf.value for one in recording.captured for leaf in one.inputs}
    names = [path for path, text in given.items() if isinstance(text, str) and _is_number(text)]
    if names:
        yield (
            f"The Python numbers that the step is called with, {names_text(names)}, are frozen at capture."
            " For other numbers, capture again, or pass tensors on the device."
        )


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _two_paths(recording: Recording) -> Iterator[str]:
    """Eager issues other operators than a capture: that they compute the same is seen on the inputs tried alone."""
    if not recording.eager or not recording.captured:
        return
    eager, captured = recording.eager[-1].ops, recording.captured[-1].ops
    if [op.name for op in eager] == [op.name for op in captured]:
        return
    first = next((b for a, b in zip(eager, captured, strict=False) if a.name != b.name), None)
    place = f", {file_line(first.location)}" if first is not None and first.location else ""
    where = f" (first {first.name}{place})" if first is not None else ""
    yield (
        f"While it is captured, the step issues other operators than in eager{where}: replays follow that path,"
        " whose agreement with eager's is known of no inputs but those tried."
    )


def _held_by_nobody(recording: Recording) -> Iterator[str]:
    """Memory of the device that neither inputs nor state lead to, such as that of a cache: each line once."""
    places: dict[Location | None, None] = {}
    for iteration in recording.captured:
        foreign = {one.storage for one in iteration.externals if one.origin == "unknown"}
        for op in iteration.ops:
            if any(use.is_cuda and use.storage in foreign for use in op.inputs):
                places.setdefault(op.location)
    for place in places:
        yield (
            f"The step reads a GPU tensor{bracketed(place)} that only a cache or a closure holds, not the inputs or the"
            " model. A replay reads its address, even after its memory was freed. If a `functools.lru_cache` holds it,"
            " use `maxsize=None`; or store it in the model as a buffer."
        )


_ADVICE = (
    "replays train as validly as eager, but with other random numbers. To get the same numbers: if nothing"
    " is padded, pass no attention mask, or a contiguous() one of four dimensions, which both paths keep."
)


def about_other_dropout(recording: Recording) -> Iterator[str]:
    """Of the first iteration that has it, its first call, and how many there are."""
    for eager, captured in zip(recording.eager, recording.captured, strict=False):
        attentions = (one.events_of(AttentionDropout) for one in (eager, captured))
        calls = [
            (before, now)
            for before, now in zip(*attentions, strict=False)
            if before.name != now.name
        ]
        if calls:
            yield _told(*calls[0], captured, count=len(calls))
            return


def _told(
    before: AttentionDropout, now: AttentionDropout, captured: Iteration, *, count: int
) -> str:
    # That the math kernel draws otherwise than the fused ones was seen on GPUs (two H200s, in float32).
    may = "takes" if "math attention" in (before.name, now.name) else "may take"
    calls = f" in {count_text(count, 'call')}" if count > 1 else ""
    return (
        f"Attention with dropout{bracketed(now.location)} has {now.mask} while it is captured, and {before.mask} in"
        f" eager{calls}{_asked_before(now, captured)}. A GPU {may} {now.name} instead of {before.name} then, which"
        f" drops other elements from the same seed: {_ADVICE}"
    )


def _asked_before(now: AttentionDropout, captured: Iteration) -> str:
    """A helper that does nothing but ask says less than the file that calls it."""
    asked = [event for event in captured.events_of(CaptureQuery) if event.op_index <= now.op_index]
    if not asked or asked[-1].location is None:
        return ""
    event = asked[-1]
    callers = (one for one in event.stack if one.file != asked[-1].location.file)
    place = place_words(next(callers, event.location), now.location)
    return f", since the code calls {event.name} ({place})" if place else ""


_Event = TypeVar("_Event", bound=PythonEvent)
_MOST = 3  # places and names that a sentence has


def stopped_state(recording: Recording, findings: Collection[Finding]) -> tuple[str, ...]:
    """The state that stops, as code names it; what a finding is about on the same line is told there."""
    places = (finding.location for finding in findings)
    told = {(place.file, place.line) for place in places if place is not None}
    names = [
        f"{event.name}{bracketed(event.location)}"
        for event in _on_host(recording, PythonStateChanged)
        if event.location is None or (event.location.file, event.location.line) not in told
    ]
    return tuple(dict.fromkeys(names))


def about_stopped(stopped: Sequence[str]) -> Iterator[str]:
    """What that means, in one remark."""
    if stopped:
        yield (
            f"Each eager step changes {names_text(stopped, most=_MOST)} in Python; replays do not. Later reads"
            " return the value from the capture. Change the state outside the step, or keep it in a GPU tensor."
        )


def raises_later(recording: Recording) -> Iterator[str]:
    """That the step fails in one of its next calls, which no replay does."""
    for event in _on_host(recording, LaterStepRaises):
        yield (
            f"the step was recorded {count_text(event.calls, 'time')} and raised in the next call:"
            f" {event.name}; what comes after that is not known, and no replay raises"
        )


def about_outside(recording: Recording) -> Iterator[str]:
    """Queries of files, sockets, processes and the environment, and work for other threads, in a remark each."""
    events = {event.location: event for event in _on_host(recording, OutsideQuery)}
    found = [f"{event.name}{bracketed(event.location)}" for event in events.values()]
    if found:
        yield (
            f"Each step reads {names_text(found, most=_MOST)}. The result is frozen at capture: a replay does"
            " not read it again. Read it outside the step."
        )
    places = dict.fromkeys(event.location for event in _on_host(recording, WorkForThread))
    for place in places:
        yield (
            f"Each step gives work to another thread{bracketed(place)}, which a replay does not. graphdoctor"
            " does not record that work."
        )


def _on_host(recording: Recording, kind: type[_Event]) -> Iterator[_Event]:
    """Those that the run saw that was watched on the host only: no iteration has them."""
    return (event for event in recording.host if isinstance(event, kind))
