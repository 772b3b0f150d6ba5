"""What a rule is: one hazard, how a recording shows it, and examples that prove it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from msgspec import Struct

from graphdoctor.values.recording import HostEvent, Op, Recording
from graphdoctor.values.report import Effect, Location

# Both examples did there what the rule says: benchmarks/data/rules_h200_torch2.11.jsonl.
MEASURED = "measured on NVIDIA H200, torch 2.11.0, 2026-11-20"


class Hit(Struct, frozen=True):
    """One place in one iteration of `recording.captured` where a rule applies.

    `op_index` is the operator that must stay out of a captured region. A host event sits
    *before* operator `op_index`: `between` is then true and only cuts the step there. What `follows`
    is in the wake of another hit of the same cause: it stays out of regions too, and does not count.
    `fix` stands in the place of the rule's where this place has a better one.
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
    fix: str = ""


class Rule(ABC):
    """One hazard. The class docstring is what users read: its first line is the title, the rest explains.

    `bad` and `good` compute the same thing and return what a target may return; the line of `bad`
    that must be reported ends in the comment `# <- GDxxx`. They run on the emulated device as they are.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    effect: ClassVar[Effect]
    fix: ClassVar[str]
    # How it is known: where it was measured, or the source or documentation that says so.
    evidence: ClassVar[str]
    # What finds it: other rules than those about a recording have a function of their own to make findings.
    decided_by: ClassVar[Literal["recording", "estimate", "partition"]] = "recording"

    @abstractmethod
    def check(self, recording: Recording) -> Iterator[Hit]:
        """Every place where the recording shows this hazard, in execution order."""

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


def at_op(iteration: int, op: Op, message: str, *, fix: str = "") -> Hit:
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
        fix=fix,
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
