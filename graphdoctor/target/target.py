"""The step under analysis, as a value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from graphdoctor.values.captures import ON_FRESH_INPUTS
from graphdoctor.values.figures import names_text
from graphdoctor.values.locations import Lines
from graphdoctor.values.report import Mode


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one call of the step gets."""

    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


class Variation(Protocol):
    """What of the given inputs is drawn anew on each call, by its path; it can be kept as given.

    `whole_numbers` are those paths of `varied` that hold integers or bools. Those of them that are
    `rearrangeable` can also get the numbers that were given, in other places. `given` are all tensors.
    """

    @property
    def given(self) -> tuple[str, ...]: ...

    @property
    def varied(self) -> tuple[str, ...]: ...

    @property
    def rearrangeable(self) -> tuple[str, ...]: ...

    @property
    def whole_numbers(self) -> tuple[str, ...]: ...

    def keep(self, paths: Collection[str]) -> None: ...

    def rearrange(self, paths: Collection[str]) -> None: ...

    def trying(
        self, paths: Collection[str], *, rearranged: Collection[str] = (), draw: int = 0
    ) -> AbstractContextManager[None]:
        """In this block only these are drawn anew, and what is drawn changes nothing afterwards.

        Equal numbers of the `draw` give equal values; those of the first are the next to be drawn afterwards.
        """


@dataclass(frozen=True, slots=True)
class Target:
    """A step, a source of fresh inputs, and the objects whose state it uses.

    `fresh_inputs()` gives new values on each call; the first call gives the inputs that the target
    was described with. `roots` names the objects ("model", "optimizer", ...) whose tensors and
    Python state are compared and restored; `entry` says which form of description matched; `notes`
    are sentences for the reader about what was chosen on their behalf. `close()` undoes what
    finding the target changed (sys.path, sys.argv, a given module's training flags); no step may
    run after it. `sized_by` names the user's functions that take a batch size, as a call.
    `variation` is there where the inputs were given and not made by the user's own function;
    `has_fixed_inputs`: every call gets the same values. `kept_inputs` are the paths of those that are
    as given on every call; `parting_inputs` of those for
    other values of which it takes another path.
    `is_warm`: the program has run the step before, and its inputs belong to the state that it is in,
    so that no warm-up may move that on. `rebound` are paths at which other code puts in other tensors
    between the steps.
    """

    name: str
    file: str
    entry: str
    mode: Mode
    step: Callable[..., object]
    fresh_inputs: Callable[[], Inputs]
    roots: Mapping[str, object]
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None
    sized_by: str = ""
    variation: Variation | None = None
    has_fixed_inputs: bool = False
    kept_inputs: tuple[str, ...] = ()
    parting_inputs: tuple[str, ...] = ()
    parting_place: str = ""  # " (model.py:12)"
    is_warm: bool = False
    rebound: tuple[str, ...] = ()
    lines: Lines | None = None  # of a step that is a part of a function
    # What a warm one's program holds of an earlier step: "`loss` (train.py:12)".
    held_by: tuple[str, ...] = ()

    @property
    def tried_on(self) -> str:
        """What the iterations and replays are tried on, as the end of a sentence."""
        if self.has_fixed_inputs:
            return "on the given inputs only"
        if self.kept_inputs:
            return f"{ON_FRESH_INPUTS} with {names_text(self.kept_inputs)} as given"
        return ON_FRESH_INPUTS
