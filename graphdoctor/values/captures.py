"""What can be captured, what was, and whether its replays were right; plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from graphdoctor.values.figures import Range
from graphdoctor.values.locations import Location


class Need(Struct, frozen=True):
    """An earlier region that must run first, and the rules whose findings stand between the two."""

    region: str
    rules: tuple[str, ...] = ()


class Region(Struct, frozen=True):
    """A run of consecutive operators that can be captured as one CUDA graph.

    `needs` are the regions that must run before it, since it works on what they left, directly or
    through operators that run as they do today, host reads included; what these need in turn is not
    repeated.
    """

    name: str  # "A", "B", ... in execution order
    operators: int
    launches: int
    phases: tuple[str, ...]
    modules: tuple[str, ...]
    first: Location | None
    last: Location | None
    blocked_by: tuple[str, ...]  # rule ids that end it, before and after
    iterations: tuple[int, ...]  # the recorded iterations that ran it
    worthwhile: bool
    reason: str  # why it is, or is not, worth capturing
    saving_us: Range | None = None  # host time that a replay would save, per step
    needs: tuple[Need, ...] = ()


class Difference(Struct, frozen=True):
    """The first tensor that a replay computed differently from eager."""

    tensor: str  # path: "model.weight", "output.logits", "model.weight.grad"
    replay: int  # which replay, counting from 1
    max_abs: float
    max_rel: float
    operator: str = ""
    location: Location | None = None
    detail: str = ""


WITHIN_DEVIATION = "within eager's own deviation"
ON_FRESH_INPUTS = "on fresh inputs"
ON_PATH_OF_CAPTURE = (
    "on the path that it takes while it is captured, which draws other random numbers"
)


class Verification(Struct, frozen=True):
    """Whether replays computed what eager computes, state included.

    `inputs` says on which inputs; `path` on which path of the step eager ran, where that is not its own.
    """

    status: Literal["verified", "wrong", "not-verified"]
    replays: int
    tensors: int  # how many tensors were compared in each replay
    method: str  # "bitwise" or `WITHIN_DEVIATION`
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    inputs: str = ON_FRESH_INPUTS
    path: str = ""


class Scope(Struct, frozen=True):
    """What one graph is to hold: the whole step, or the region of this name."""

    region: str = ""

    @classmethod
    def parse(cls, text: str) -> Scope:
        """A scope as reports have it: "whole step" or "region A"."""
        kind, _, region = text.partition(" ")
        scope = cls(region) if kind == "region" else cls()
        if str(scope) != text:
            raise ValueError(f'a scope is "whole step" or "region A", not "{text}"')
        return scope

    def __str__(self) -> str:
        return f"region {self.region}" if self.region else "whole step"


WHOLE_STEP = Scope()


class CaptureOutcome(Struct, frozen=True):
    """One attempt to capture: the whole step, or a region by its name."""

    scope: str  # "whole step" or "region A": a `Scope`, as it is saved
    status: Literal["captured", "refused"]
    reason: str = ""
    location: Location | None = None
    operators: int = 0
    verification: Verification | None = None

    def __post_init__(self) -> None:
        Scope.parse(self.scope)

    @property
    def is_whole_step(self) -> bool:
        return Scope.parse(self.scope) == WHOLE_STEP

    @property
    def region(self) -> str:
        """The name of its region; "" for the whole step."""
        return Scope.parse(self.scope).region

    @property
    def is_verified(self) -> bool:
        return self.verification is not None and self.verification.status == "verified"


def outcome_of_whole_step(captures: Iterable[CaptureOutcome]) -> CaptureOutcome | None:
    """What came of capturing the whole step; None where that was not tried."""
    return next((capture for capture in captures if capture.is_whole_step), None)
