"""What a rule is: one hazard, everything known about it, and examples that prove it."""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

from msgspec import Struct

from graphdoctor.values.finding import Cure, Effect, Finding
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Event, Op, Recording

Result = TypeVar("Result")
# Both examples did there what the rule says: benchmarks/data/rules_h200_torch2.11.jsonl.
MEASURED = "measured on NVIDIA H200, torch 2.11.0, 2026-11-20"


NO_CURE = Cure()


class Hit(Struct, frozen=True):
    """One place in one iteration of `recording.captured` where a rule applies.

    `op_index` is the operator that must stay out of a captured region. A host event sits
    *before* operator `op_index`: `between` is then true and only cuts the step there. What `follows`
    is in the wake of another hit of the same cause: it stays out of regions too, and does not count.
    `cure` replaces the rule's own if this place has a better one. `refused_alone`: the
    operator is refused wherever it runs, so that a capture of nothing else can show otherwise.
    """

    iteration: int
    op_index: int
    message: str
    location: Location | None
    stack: tuple[Location, ...] = ()
    module: str = ""
    phase: str = "forward"
    operator: str = ""
    between: bool = False
    follows: bool = False
    cure: Cure = NO_CURE
    refused_alone: bool = False


class Rule(ABC):
    """One hazard. The class docstring is what users read: its first line is the title, the rest explains.

    `bad` and `good` compute the same thing and return what a target may return; the line of `bad`
    that must be reported ends in the comment `# <- GDxxx`. They run on the emulated device as they are.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    effect: ClassVar[Effect]
    fix: ClassVar[str]
    evidence: ClassVar[str]
    """How it is known: where it was measured, or the source or documentation that says so."""
    explains: ClassVar[tuple[str, ...]] = ()
    """Ids of the rules that find a part or a consequence of this hazard: where this one speaks
    about a line, theirs are not reported."""
    makes_host_wait: ClassVar[bool] = False
    """The host waits for the device, or for a copy to it, in every step."""
    only_feeds_device: ClassVar[bool] = False
    """It copies to the device and returns nothing to the host: such a copy may move where data allows."""
    is_glue: ClassVar[bool] = False
    """It is about a call that a split training step makes between its graphs, wherever it is written."""

    @staticmethod
    @abstractmethod
    def bad() -> object:
        """A step that has the hazard."""

    @staticmethod
    @abstractmethod
    def good() -> object:
        """The same step, rewritten to be safe."""

    @classmethod
    def title(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").split("\n", 1)[0]

    @classmethod
    def explanation(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[2].strip()

    @classmethod
    def finding(cls, message: str, location: Location | None) -> Finding:
        """A finding of this rule, for whoever decides it."""
        return Finding(
            rule=cls.id,
            name=cls.name,
            effect=cls.effect,
            message=message,
            why=" ".join(cls.explanation().split("\n\n")[0].split()),
            fix=cls.fix,
            location=location,
        )


class RecordingRule(Rule):
    """A hazard that a recording shows; others are found by a function in the file of the rule."""

    @abstractmethod
    def check(self, recording: Recording) -> Iterator[Hit]:
        """Every place where the recording shows this hazard, in execution order."""


class EventRule(RecordingRule):
    """A hazard that is one kind of host event; `says` follows what was called in the message."""

    event: ClassVar[type[HostEvent]]
    says: ClassVar[str]

    def check(self, recording: Recording) -> Iterator[Hit]:
        return event_hits(recording, self.event, lambda event: f"{event.name}{self.says}")


def event_hits(
    recording: Recording, kind: type[Event], message: Callable[[Event], str]
) -> Iterator[Hit]:
    """Hits in the iterations that ran as if captured, in execution order."""
    for iteration in recording.captured:
        for event in iteration.events_of(kind):
            yield at_event(iteration.index, event, message(event))


def at_op(
    iteration: int,
    op: Op,
    message: str,
    *,
    cure: Cure = NO_CURE,
    refused_alone: bool = False,
) -> Hit:
    """A hit on an operator."""
    return Hit(
        iteration=iteration,
        op_index=op.index,
        message=message,
        location=op.location,
        stack=op.stack,
        module=op.module,
        phase=op.phase,
        operator=op.name,
        cure=cure,
        refused_alone=refused_alone,
    )


def at_event(iteration: int, event: HostEvent, message: str) -> Hit:
    """A hit on something the host did between operators."""
    return Hit(
        iteration=iteration,
        op_index=event.op_index,
        message=message,
        location=event.location,
        stack=event.stack,
        module=event.module,
        operator=event.name,
        between=True,
    )


def once(function: Callable[[Recording], Result]) -> Callable[[Recording], Result]:
    """Remember the result for the recording asked about last: rules share one after another."""
    last: list[tuple[weakref.ref[Recording], Result]] = []

    def remembered(recording: Recording) -> Result:
        if not last or last[0][0]() is not recording:
            last[:] = [(weakref.ref(recording), function(recording))]
        return last[0][1]

    return remembered
