"""Find the statements from which events of training steps come, and each time that the statements begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FrameType

from graphdoctor.target.program.events import At, Event
from graphdoctor.target.program.rebuild import NotRebuilt, Variables, variables_of
from graphdoctor.target.program.statements import Span, find_span

STEPS_TO_LEARN = 3
_OPTIONAL = frozenset({"schedule", "clip", "scaler", "zero-grad"})  # of a step only where in each


@dataclass(frozen=True, slots=True)
class Loop:
    """A training step: its statements, and whether autocast is on around all of them."""

    span: Span
    variables: Variables
    is_autocast: bool | None  # None: as it is where the step begins


def learn(events: Sequence[Event]) -> Loop | None:
    """The statements that hold every event of the steps seen; None before enough steps were seen.

    Raises NotRebuilt where their source is not there, or cannot be run by itself.
    """
    steps = [index for index, event in enumerate(events) if event.kind == "step"]
    if not steps:
        return None
    own = [i for i in steps if events[i].subject is events[steps[0]].subject]
    if len(own) < STEPS_TO_LEARN:
        return None
    periods = [events[a + 1 : b + 1] for a, b in pairwise(own)]
    if not any(event.kind == "backward" for period in periods for event in period):
        raise NotRebuilt(
            "The optimizer steps on gradients that no backward() made, as those of torch.func.grad: put"
            " `with graphdoctor.step():` around the lines of a step."
        )
    core = list(_of_every_step(periods))
    code = _common_code(core)
    if code is None:
        raise NotRebuilt("The training steps begin and end in no function that they share.")
    lines = [at.line for event in core if (at := at_code(event.places, code)) is not None]
    span = find_span(code, lines, last_line=max(lines))
    if span is None:
        raise NotRebuilt(
            f"The source of {code.co_filename} cannot be read, so the step has no lines."
        )
    return Loop(span, variables_of(span), all(e.is_autocast for e in core if e.kind == "step"))


def at_code(places: Iterable[At], code: CodeType) -> At | None:
    """The innermost frame that runs this code."""
    return next((at for at in places if at.code is code), None)


def _of_every_step(periods: Sequence[Sequence[Event]]) -> Iterable[Event]:
    """Without what is not there in each step, such as a schedule that moves once an epoch."""
    often = Counter(kind for period in periods for kind in {event.kind for event in period})
    for period in periods:
        for event in period:
            if event.kind not in _OPTIONAL or often[event.kind] == len(periods):
                yield event


def _common_code(events: Sequence[Event]) -> CodeType | None:
    shared = [{at.code for at in event.places} for event in events]
    for at in events[-1].places:
        if all(at.code in codes for codes in shared):
            return at.code
    return None


@dataclass
class Follower:
    """Tells, event by event, when a loop's statements begin anew."""

    span: Span
    _frame: FrameType | None = None
    _position: int = -1
    _begun_at: int = -1
    _has_stepped: bool = field(default=False)
    _begun_on: int = -1  # the line
    # The statement that it began with: its backward pass ran.
    _has_ended: bool = field(default=False)

    def begins(self, event: Event) -> At | None:
        """The frame, where a new pass through the statements begins with this event."""
        at = at_code(event.places, self.span.code)
        position = self.span.position(at.line) if at is not None else None
        if at is None or position is None:
            return None
        stays = position == self._position == self._begun_at
        has_ended = self._has_stepped or (self._has_ended and at.line == self._begun_on)
        again = stays and has_ended and event.kind == "forward"
        is_new = at.frame is not self._frame or position < self._position or again
        self._frame, self._position = at.frame, position
        if is_new:
            self._has_stepped, self._begun_at, self._begun_on = False, position, at.line
        self._has_ended = event.kind == "backward" and self._runs_once(at, event, position)
        return at if is_new else None

    def _runs_once(self, at: At, event: Event, position: int) -> bool:
        """Whether a line of this statement runs only once in a pass: what it calls may loop."""
        is_own = position == self._begun_at and event.places[0] is at
        return is_own and not self.span.repeats(position)

    def lengthen(self, span: Span) -> None:
        """Go on with a span that begins earlier, within the same pass."""
        self._position += self.span.first - span.first
        self._begun_at += self.span.first - span.first
        self.span = span

    def has_stepped(self) -> None:
        """The optimizer has: a step with a closure holds the whole of it, so its beginning says nothing."""
        self._has_stepped = True

    def holds(self, event_places: Sequence[At]) -> bool:
        """Whether something happens inside the statements."""
        at = at_code(event_places, self.span.code)
        return at is not None and self.span.position(at.line) is not None
