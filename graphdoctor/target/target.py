"""The step under analysis, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphdoctor.values.report import Mode


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one call of the step gets."""

    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


def _nothing_to_undo() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Target:
    """A step, a source of fresh inputs, and the objects whose state it uses.

    `fresh_inputs()` gives new values on each call; the first call gives the inputs that the target
    was described with. `roots` names the objects ("model", "optimizer", ...) whose tensors and
    Python state are compared and restored; `entry` says which form of description matched; `notes`
    are sentences for the reader about what was chosen on their behalf. `close()` undoes what
    finding the target changed (sys.path, sys.argv, a given module's training flags); no step may
    run after it. `sized_by` names the user's functions that take a batch size, as a call.
    """

    name: str
    file: str
    entry: str
    mode: Mode
    step: Callable[..., object]
    fresh_inputs: Callable[[], Inputs]
    roots: Mapping[str, object]
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = _nothing_to_undo
    sized_by: str = ""
