"""Replays that differ from eager, where a step takes another path while it is captured -> how far that leads away.

That path may draw other random numbers: two kernels for one function, as for attention, draw differently
for their dropout. From the same seed they drop other elements, and no comparison of values tells them
from kernels for two functions. So both paths run once more in eager with attention by one kernel, which draws
the same whatever its mask is: then they have to agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import structs
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from graphdoctor.device.observe.dispatch import DispatchMode
from graphdoctor.device.observe.operators import facts_of, parts_in_order
from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.graphs.generator import generator_state
from graphdoctor.operators import call_draws
from graphdoctor.proof.other_rounding import OtherRounding
from graphdoctor.proof.twins import FIRST_SEED, TwinTrial, gaps_of, kept, verified, wrong
from graphdoctor.values.captures import ON_PATH_OF_CAPTURE, Verification
from graphdoctor.values.errors import UserCodeError

_ANOTHER_PATH = "the step takes another path while it is captured"
_ELSE_WHILE_CAPTURED = "the step does something else while it is captured"
_OTHER_NUMBERS = (
    "the step takes another path while it is captured, which draws other random numbers: its answers "
    "cannot be compared with eager's; replays follow that path exactly"
)

_ONE_KERNEL = (
    "the step takes another path while it is captured, which draws other random numbers: replays equal eager's "
    "on that path, and with attention by one kernel, which draws alike on both, eager's two paths agree"
)


def judge_other_path(
    trial: TwinTrial, expected: Sequence[Footprint], real: Sequence[Sequence[Gap]]
) -> Verification:
    """Whether the step itself takes another path while captured, and how far that leads away.

    `real` are the gaps between `expected`, which eager left behind, and the replays.
    """
    as_captured = kept(trial.eager_as_captured())
    replayed = gaps_of(as_captured, trial.replays())
    steady = {gap.path for step in real for gap in step}
    follows = not any(trial.counts(gap) and gap.path in steady for step in replayed for gap in step)
    if not trial.meeting.everywhere(follows):
        return wrong(trial, real)
    rounding = OtherRounding(expected)
    gaps = gaps_of(expected, rounding.aligned(trial.replays()))
    far = _among(steady, rounding.beyond(gaps))
    if trial.meeting.everywhere(not any(far)):
        first = next(gap for step in real for gap in step)
        note = _other_path(trial, first, "no more than rounding")
        return verified(trial, as_captured, note=note)
    random = reached_by_other_numbers(trial, expected, as_captured)
    far = _without(far, random)
    if trial.meeting.everywhere(not any(far)):
        return _judge_by_one_kernel(trial, as_captured, steady)
    return _judge_far(trial, _without(real, random), far)


def _judge_far(
    trial: TwinTrial, real: Sequence[Sequence[Gap]], far: Sequence[Sequence[Gap]]
) -> Verification:
    """By what the random numbers that the other path draws cannot explain."""
    gaps = [gap for step in far for gap in step]
    if not gaps:
        return trial.verdict("not-verified", _OTHER_NUMBERS)
    if any(gap.is_in_output for gap in gaps):
        return wrong(trial, real, detail=_ELSE_WHILE_CAPTURED)
    return trial.verdict("not-verified", _other_path(trial, gaps[0], "more than rounding"))


def _judge_by_one_kernel(
    trial: TwinTrial, as_captured: Sequence[Footprint], steady: Set[str]
) -> Verification:
    """By eager's two paths, with attention by the kernel that takes any mask, and draws alike for each.

    Where that is not why they draw otherwise, they still do, and nothing is known. `as_captured` is what
    eager left behind on the path of the capture, with the kernels that the step takes: the replays did, too.
    """
    eager, captured = _Draws(), _Draws()
    try:
        with sdpa_kernel(SDPBackend.MATH):
            expected = kept(eager.noted(trial.eager()))
            rounding = OtherRounding(expected)
            gaps = gaps_of(expected, rounding.aligned(captured.noted(trial.eager_as_captured())))
        draws_alike = all(eager.alike(captured))
    except UserCodeError:  # not with this kernel: it takes more memory, and no nested tensors
        draws_alike = False
    if not trial.meeting.everywhere(draws_alike):
        return trial.verdict("not-verified", _OTHER_NUMBERS)
    far = _among(steady, rounding.beyond(gaps))
    if trial.meeting.everywhere(not any(far)):
        found = verified(trial, as_captured, note=_ONE_KERNEL)
        return structs.replace(found, path=ON_PATH_OF_CAPTURE)
    return _judge_far(trial, far, far)


def _among(paths: Set[str], gaps: Sequence[Sequence[Gap]]) -> list[list[Gap]]:
    return [[gap for gap in step if gap.path in paths] for step in gaps]


def _without(gaps: Sequence[Sequence[Gap]], paths: Sequence[Set[str]]) -> list[list[Gap]]:
    return [
        [gap for gap in step if gap.path not in left_out]
        for step, left_out in zip(gaps, paths, strict=True)
    ]


def _other_path(trial: TwinTrial, gap: Gap, how_much: str) -> str:
    path = getattr(trial.captured.graph, "other_path", "") or _ANOTHER_PATH
    how = f"differs from eager's by up to {gap.max_abs:.3g}, {how_much}"
    return f"{path}, which replays follow exactly: {gap.path} {how}"


_OTHER_SEED = 2 * FIRST_SEED  # any other number
_Draw = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Draws:
    """What each step of a run drew, and where that left the generator: a custom operator's show there only."""

    of_steps: list[tuple[tuple[_Draw, ...], torch.Tensor]] = field(default_factory=list)

    def noted(self, run: Iterable[Footprint]) -> Iterator[Footprint]:
        """The run, which is to end before another begins: the log sees all that runs meanwhile."""
        with _DrawLog() as log:
            for seen in run:
                self.of_steps.append((log.taken(), generator_state()))
                yield seen

    def alike(self, other: _Draws) -> list[bool]:
        """For each step, whether both drew the same numbers in it."""
        return [
            mine == theirs and torch.equal(one, two)
            for (mine, one), (theirs, two) in zip(self.of_steps, other.of_steps, strict=True)
        ]


def reached_by_other_numbers(
    trial: TwinTrial, expected: Sequence[Footprint], as_captured: Sequence[Footprint]
) -> list[Set[str]]:
    """The paths, after each step, whose values follow from random numbers that eager does not draw.

    They are those that come out otherwise under another seed, on either path, from the first step on
    in which both paths do not draw the same in the same order. What an earlier step drew otherwise
    may lie in the state.
    """
    eager, captured = _Draws(), _Draws()
    moved = _moved(trial, expected, eager.noted(trial.eager(first_seed=_OTHER_SEED)))
    run = captured.noted(trial.eager_as_captured(first_seed=_OTHER_SEED))
    also_moved = _moved(trial, as_captured, run)
    found: list[Set[str]] = []
    parted = False
    for is_alike, one, other in zip(eager.alike(captured), moved, also_moved, strict=True):
        parted = parted or not is_alike
        found.append(one | other if parted else frozenset())
    return found


def _moved(
    trial: TwinTrial, known: Sequence[Footprint], run: Iterable[Footprint]
) -> list[Set[str]]:
    return [{gap.path for gap in step if trial.counts(gap)} for step in gaps_of(known, run)]


class _DrawLog(DispatchMode):
    """Notes each operator that draws random numbers: its name, its numbers, its tensors' shapes."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[_Draw] = []

    def taken(self) -> tuple[_Draw, ...]:
        """What was drawn since the last time."""
        drawn = tuple(self._draws)
        self._draws.clear()
        return drawn

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it is made of plain tensors: their operators will come here
        named = dict(kwargs or {})
        facts = facts_of(func)
        if facts.is_composite:
            with self:  # its parts come here: which kernels they choose is what counts
                return parts_in_order(func)(*args, **named)
        if facts.is_random and call_draws(facts.name, args, named):
            self._draws.append((facts.name, _plain(args), _plain(tuple(sorted(named.items())))))
        return func(*args, **named)


def _plain(value: Any) -> object:
    """A value that is equal for calls that draw the same numbers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return value
    return type(value).__name__
