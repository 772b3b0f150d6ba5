"""Replays that differ from eager, where a step takes another path while it is captured -> how far that leads away.

That path may draw other random numbers: two kernels for one function, as for attention, draw differently
for their dropout. From the same seed they drop other elements, and no comparison of values tells them
from kernels for two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from graphdoctor.device.observe.operators import facts_of, parts_in_order
from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint, gaps_between
from graphdoctor.graphs.generator import generator_state
from graphdoctor.operators import call_draws
from graphdoctor.proof.other_rounding import OtherRounding
from graphdoctor.proof.twins import FIRST_SEED, TwinTrial, gaps_of, kept, verified, wrong
from graphdoctor.values.report import Verification

_ELSE_WHILE_CAPTURED = "the step does something else while it is captured"
_OTHER_NUMBERS = (
    "the step takes another path while it is captured, which draws other random numbers: its answers "
    "cannot be compared with eager's; replays follow that path exactly"
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
    if any(trial.counts(gap) and gap.path in steady for step in replayed for gap in step):
        return wrong(trial, real)
    rounding = OtherRounding(expected)
    gaps = gaps_of(expected, rounding.aligned(trial.replays()))
    far = [[gap for gap in step if gap.path in steady] for step in rounding.beyond(gaps)]
    if not any(far):
        first = next(gap for step in real for gap in step)
        return verified(trial, as_captured, note=_other_path(first, "no more than rounding"))
    random = reached_by_other_numbers(trial, expected, as_captured)
    return _judge_far(trial, _without(real, random), _without(far, random))


def _judge_far(
    trial: TwinTrial, real: Sequence[Sequence[Gap]], far: Sequence[Sequence[Gap]]
) -> Verification:
    """By what the random numbers that the other path draws cannot explain."""
    gaps = [gap for step in far for gap in step]
    if not gaps:
        return trial.verdict("not-verified", _OTHER_NUMBERS)
    if any(gap.is_in_output for gap in gaps):
        return wrong(trial, real, detail=_ELSE_WHILE_CAPTURED)
    return trial.verdict("not-verified", _other_path(gaps[0], "more than rounding"))


def _without(gaps: Sequence[Sequence[Gap]], paths: Sequence[Set[str]]) -> list[list[Gap]]:
    return [
        [gap for gap in step if gap.path not in left_out]
        for step, left_out in zip(gaps, paths, strict=True)
    ]


def _other_path(gap: Gap, how_much: str) -> str:
    return (
        "the step takes another path while it is captured, which replays follow exactly: "
        f"{gap.path} differs from eager's by up to {gap.max_abs:.3g}, {how_much}"
    )


_OTHER_SEED = 2 * FIRST_SEED  # any other number
_Draw = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """One step under another seed: what it drew, where that left the generator, what came out otherwise."""

    draws: tuple[_Draw, ...]
    generator: torch.Tensor
    moved: Set[str]

    def drew_as(self, other: _Step) -> bool:
        """Whether both drew the same numbers; a custom operator's show in the generator only."""
        return self.draws == other.draws and torch.equal(self.generator, other.generator)


def reached_by_other_numbers(
    trial: TwinTrial, expected: Sequence[Footprint], as_captured: Sequence[Footprint]
) -> list[Set[str]]:
    """The paths, after each step, whose values follow from random numbers that eager does not draw.

    They are those that come out otherwise under another seed, on either path, from the first step on
    in which both paths do not draw the same in the same order. What an earlier step drew otherwise
    may lie in the state.
    """
    eager = _steps(trial, expected, trial.eager)
    captured = _steps(trial, as_captured, trial.eager_as_captured)
    found: list[Set[str]] = []
    parted = False
    for one, other in zip(eager, captured, strict=True):
        parted = parted or not one.drew_as(other)
        found.append(one.moved | other.moved if parted else frozenset())
    return found


def _steps(
    trial: TwinTrial, known: Sequence[Footprint], twin: Callable[..., Iterable[Footprint]]
) -> list[_Step]:
    steps: list[_Step] = []
    with _DrawLog() as log:
        for before, now in zip(known, twin(first_seed=_OTHER_SEED), strict=True):
            drawn, generator = log.taken(), generator_state()
            moved = {gap.path for gap in gaps_between(before, now) if trial.counts(gap)}
            steps.append(_Step(drawn, generator, moved))
    return steps


class _DrawLog(TorchDispatchMode):
    """Notes each operator that draws random numbers: its name, its numbers, its tensors' shapes."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws: list[_Draw] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler (seconds) to wrap the method below."""
        return False

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
