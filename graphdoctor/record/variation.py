"""Draws new values for the inputs that the step accepts with other values, and leaves the rest as given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from typing import Protocol

import torch

from graphdoctor.device.observe.known_results import nothing_kept
from graphdoctor.device.observe.meeting import RanksDiffer
from graphdoctor.device.observe.operators import Call, Observer, tensors_of
from graphdoctor.device.observe.storages import parts_of
from graphdoctor.device.open import AnyDevice
from graphdoctor.target.frames import locate
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import Snapshot, has_memory, named_tensors, snapshot
from graphdoctor.target.state.tree import input_leaves, leaves
from graphdoctor.target.target import Inputs, Target, Variation
from graphdoctor.target.user_code import in_short, user_code
from graphdoctor.values.errors import GraphDoctorError, UserCodeError
from graphdoctor.values.locations import Location, file_line

Path = list[int]  # a number for each operator with the shapes of what it made, in order


@dataclass(frozen=True)
class Outcome:
    """What a run of the step returned, and which way it took; `place`: where the asked-for operator is."""

    result: object
    path: Path
    place: Location | None = None

    @cached_property
    def is_finite(self) -> bool:
        """Whether all floating tensors that the step returned are; one that returns none is."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return all(map(_has_finite_values, leaves(self.result, "output").values()))


class RunOn(Protocol):
    """Runs the step on copies of inputs, and finds the place of the operator `at`."""

    def __call__(self, inputs: Inputs, *, at: int = -1) -> Outcome: ...


class PathObserver(Observer):
    """Sums up the operators that a run issues and the shapes of what they make; locates one of them."""

    def __init__(self, at: int = -1) -> None:
        self.path: Path = []
        self.place: Location | None = None
        self._at = at

    def before(self, call: Call) -> None:
        if len(self.path) == self._at and self.place is None and not call.facts.is_marker:
            self.place = locate().location

    def after(self, call: Call) -> None:
        if not call.facts.is_marker:
            with torch._C.DisableTorchFunction():
                made = tensors_of(call.result)
                shapes = tuple(None if each.is_nested else tuple(each.shape) for each in made)
            self.path.append(hash((call.facts.name, shapes)))


def _has_finite_values(leaf: object) -> bool:
    values = floating_values(leaf)
    return values is None or all(map(math.isfinite, least_and_largest(values)))


def least_and_largest(values: torch.Tensor) -> tuple[float, float]:
    """Of floating values, in one pass and without memory for each; both are NaN where one of them is."""
    if not values.numel():
        return 0.0, 0.0
    # float8 lacks the operator.
    low, high = torch.aminmax(values.float() if values.dtype.itemsize == 1 else values)
    return float(low), float(high)


def floating_values(leaf: object) -> torch.Tensor | None:
    """What there is to look at for NaN and infinity; of a sparse tensor, what it holds."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or leaf.is_nested:
        return None
    return parts_of(leaf)[0].detach() if has_memory(leaf) else None


FIXED = "every iteration gets the inputs as they were given"
_MOST_TRIALS = 24  # each runs the step once
_DRAWS = 2  # of whole numbers, to see whether the step takes another path: one may miss it
_LONGEST = 160


def with_fixed_inputs(target: Target) -> Target:
    """The target, whose every call gets the values that it was described with."""
    first = target.fresh_inputs()
    state = memory_of(named_tensors(target.roots).values())
    return replace(
        target,
        fresh_inputs=lambda: clone_inputs(first, kept=state),
        variation=None,
        has_fixed_inputs=True,
        notes=(*target.notes, FIXED),
    )


def in_turn(target: Target, batches: Sequence[Inputs]) -> Target:
    """The target, whose calls get copies of these one after the other, and then again."""
    turn, state = cycle(batches), memory_of(named_tensors(target.roots).values())
    return replace(target, fresh_inputs=lambda: clone_inputs(next(turn), kept=state))


def narrowed(target: Target, error: UserCodeError) -> Target | None:
    """The target with fewer inputs drawn anew, after a run with drawn ones failed; None: none are drawn.

    A draw of whole numbers may go well where the next one does not: they are the first to be kept.
    """
    variation = target.variation
    if variation is None or not variation.varied:
        return None
    paths = variation.whole_numbers or variation.varied
    variation.keep(paths)
    why = f"the step fails ({_words(error)})"
    note = (
        f"{', '.join(paths)}: kept as given, because with some other values of the same range {why}"
    )
    return replace(target, notes=(*target.notes, note))


def settled(
    target: Target,
    run: RunOn,
    *,
    given: Outcome,
    device: AnyDevice,
    start: Snapshot | None = None,
) -> tuple[Target, Snapshot | None]:
    """Find out by throw-away runs which inputs may have other values; the others stay as given.

    `given` is the run on the inputs as they were given. An input is kept where the step raises with
    other values of it, or gives results that are not finite, which they were. Whole numbers that the
    step does not accept are rearranged where that goes: then they are still what somebody would pass. So
    are those in the host's memory that the step takes another path for. On the device they vary all the
    same: who reads them there is found whatever they are. State is afterwards as it was before: as the
    snapshot has it, where one was taken. `start` is one of it, where there is one.
    """
    variation = target.variation
    if variation is None or not variation.given:
        return target, None
    shared = device.meeting.common(
        variation.varied
    )  # ranks run the same steps: what one keeps all keep
    variation.keep([path for path in variation.varied if path not in shared])
    if not variation.varied:
        return replace(target, has_fixed_inputs=True), None
    before = start or snapshot(target.roots, memory=device.table)
    search = _Search(target, variation, run, before.restore, given, device)
    try:
        found = search.found()
    finally:
        before.restore()
    variation.keep(found.kept)
    variation.rearrange(found.rearranged)
    found_out = replace(
        target,
        has_fixed_inputs=not variation.varied,
        kept_inputs=tuple(path for path in variation.given if path not in variation.varied),
        parting_inputs=found.parting,
        parting_place=found.place,
        notes=(*target.notes, *found.notes(search.why)),
    )
    return found_out, before


@dataclass(frozen=True, slots=True)
class _Found:
    """Paths of inputs; for other values of `parting` the step takes another path, at `place`."""

    kept: tuple[str, ...]
    rearranged: tuple[str, ...]
    parting: tuple[str, ...]
    parting_on_device: tuple[str, ...]
    place: str

    def notes(self, why: str) -> Iterator[str]:
        refused = [path for path in self.kept if path not in self.parting]
        if refused:
            yield (
                f"{', '.join(refused)}: kept as given, because with other values of the same range"
                f" {why}"
            )
        moved = [path for path in self.rearranged if path not in self.parting]
        if moved:
            yield (
                f"{', '.join(moved)}: the given numbers in other places only, because with others of"
                f" the same range {why}"
            )
        if self.parting:
            yield (
                f"{', '.join(self.parting)}: no other numbers than the given ones, because the step"
                f" takes another path for others{self.place}"
            )
        if self.parting_on_device:
            yield (
                f"{', '.join(self.parting_on_device)}: the step takes another path for other values of"
                f" the same range{self.place}"
            )


@dataclass
class _Search:
    """Halves what does not go together until each input is known to vary, or to be kept."""

    target: Target
    variation: Variation
    run: RunOn
    restore: Callable[[], None]
    given: Outcome
    device: AnyDevice
    why: str = ""
    _accepted: list[str] = field(default_factory=list)
    _rearranged: list[str] = field(default_factory=list)
    _trials: int = 0
    _place: str = ""
    _error: Exception | None = None  # of the last run that failed
    _together: dict[frozenset[str], Outcome] = field(
        default_factory=dict
    )  # the last that was accepted
    _is_checked: bool = False

    def found(self) -> _Found:
        paths, movable = (
            self.variation.varied,
            self.device.meeting.common(self.variation.rearrangeable),
        )
        self._accept(list(paths), movable)
        whole = self.device.meeting.common(self.variation.whole_numbers)
        found = self._parting([path for path in whole if path in self._accepted])
        on_device = [path for path in found if path in self._on_device()]
        parting = [path for path in found if path not in on_device]
        self._accepted = [path for path in self._accepted if path not in parting]
        for path in parting:
            if path in movable and self._ran([], [*self._rearranged, path]):
                self._rearranged.append(path)
        varied = {*self._accepted, *self._rearranged}
        return _Found(
            kept=tuple(path for path in paths if path not in varied),
            rearranged=tuple(self._rearranged),
            parting=tuple(parting),
            parting_on_device=tuple(on_device),
            place=self._place,
        )

    def _on_device(self) -> set[str]:
        with self.variation.trying([]):
            found = input_leaves(self.target.fresh_inputs())
        leaves_on_device = {
            path
            for path, leaf in found.items()
            if isinstance(leaf, torch.Tensor) and self.device.table.is_cuda(leaf)
        }
        return {
            path for path in self.variation.varied if {*path.split(" and ")} <= leaves_on_device
        }

    def _accept(self, paths: list[str], movable: Sequence[str]) -> None:
        if ran := self._ran([*self._accepted, *paths], self._rearranged):
            self._accepted += paths
            self._together = {frozenset(self._accepted): ran}
        elif len(paths) > 1:
            self._accept(paths[: len(paths) // 2], movable)
            self._accept(paths[len(paths) // 2 :], movable)
        elif paths[0] in movable and self._ran(self._accepted, [*self._rearranged, *paths]):
            self._rearranged += paths
        else:
            self._check_it_is_the_input(paths)

    def _check_it_is_the_input(self, paths: list[str]) -> None:
        """Raises the step's own error where it has nothing to do with the values: asked once.

        The step then fails with the given ones as well, or runs with the very values that it failed with.
        """
        error, self._error = self._error, None
        if error is None or self._is_checked or self.device.meeting.has_others:
            return
        self._is_checked = True
        if self._trials + 2 > _MOST_TRIALS:
            return
        self._ran([], [])
        fails_as_given = self._error is not None
        if fails_as_given or self._ran([*self._accepted, *paths], self._rearranged) is not None:
            cause = error.__cause__ if isinstance(error, UserCodeError) else error
            with user_code("running the step, which fails now and then on the same inputs,"):
                raise cause or error

    def _parting(self, whole: list[str]) -> list[str]:
        """Which of these whole numbers the step takes another path for, floating ones as given."""
        for draw in range(_DRAWS if whole else 0):
            # Where all that varies is whole numbers, the step has just run on the first draw of them.
            has_run = not draw and not self._rearranged and self._together.get(frozenset(whole))
            together = has_run or self._ran(whole, self._rearranged, draw=draw)
            if together is None or self.device.meeting.everywhere(together.path == self.given.path):
                continue
            # The given run started from another state, which may lead elsewhere too.
            own = self._ran([], self._rearranged)
            if own is None or self.device.meeting.everywhere(own.path == together.path):
                continue
            found = []
            for path in whole:
                ran = self._ran([path], self._rearranged, draw=draw)
                if ran is not None and not self.device.meeting.everywhere(ran.path == own.path):
                    found.append(path)
            self._locate(own.path, together.path)
            return found or whole
        return []

    def _locate(self, own: Path, other: Path) -> None:
        """Where the step as given does the first thing that it does not do for other values."""
        pairs = enumerate(zip(own, other, strict=False))
        at = next((index for index, (one, two) in pairs if one != two), min(len(own), len(other)))
        ran = self._ran([], self._rearranged, at=at)
        if ran is not None and ran.place is not None:
            self._place = f" ({file_line(ran.place)})"

    def _ran(
        self, paths: Sequence[str], rearranged: Sequence[str], *, draw: int = 0, at: int = -1
    ) -> Outcome | None:
        """None where the step does not accept these inputs, or no run is left."""
        if self._trials >= _MOST_TRIALS:
            return None
        self._trials += 1
        with self.variation.trying(paths, rearranged=rearranged, draw=draw):
            inputs = self.target.fresh_inputs()
        # The inputs of the first trial come again where it goes well: an iteration gets them.
        try:
            with nullcontext() if self._trials == 1 else nothing_kept():
                ran = self.run(inputs, at=at)
        except RanksDiffer:
            raise
        except Exception as error:  # whatever the step raises
            self.why = self.why or f"the step fails ({_words(error)})"
            self._error = error
            return None
        finally:
            self.restore()
        lost = self.given.is_finite and not ran.is_finite
        if not self.device.meeting.everywhere(not lost):
            self.why = self.why or "it gives results that are not finite"
            return None
        return ran


def _words(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, GraphDoctorError) and error.__cause__ else error
    text = in_short(cause)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
