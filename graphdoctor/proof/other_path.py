"""Replays that differ from eager, where a step takes another path while it is captured -> how far that leads away."""

from __future__ import annotations

from collections.abc import Sequence, Set

from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.other_numbers import reached_by_other_numbers
from graphdoctor.proof.twin_trial import TwinTrial, gaps_of, kept, verified, wrong
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
    largest = largest_gradient_of(as_captured)
    far = [[gap for gap in step if not is_other_rounding(gap, largest)] for step in real]
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
    if any(_is_output(gap) for gap in gaps):
        return wrong(trial, real, detail=_ELSE_WHILE_CAPTURED)
    return trial.verdict("not-verified", _other_path(gaps[0], "more than rounding"))


def _without(gaps: Sequence[Sequence[Gap]], paths: Sequence[Set[str]]) -> list[list[Gap]]:
    return [
        [gap for gap in step if gap.path not in left_out]
        for step, left_out in zip(gaps, paths, strict=True)
    ]


def is_other_rounding(gap: Gap, largest_gradient: float) -> bool:
    """Another algorithm for the same function, or a gradient whose true value is 0.

    Such a gradient, as of a key's bias in attention, is what rounding leaves of terms that cancel:
    as large as the rounding of the gradients around it, and without one digit of its own.
    """
    if gap.is_within_half_the_digits:
        return True
    is_gradient = gap.is_measurable and gap.path.endswith(".grad")
    return is_gradient and gap.max_abs <= gap.eps * largest_gradient


def largest_gradient_of(footprints: Sequence[Footprint]) -> float:
    largest = 0.0
    for seen in footprints:
        for path, tensor in seen.tensors.items():
            if path.endswith(".grad") and tensor.numel() and tensor.is_floating_point():
                largest = max(largest, float(tensor.abs().max()))
    return largest


def _other_path(gap: Gap, how_much: str) -> str:
    return (
        "the step takes another path while it is captured, which replays follow exactly: "
        f"{gap.path} differs from eager's by up to {gap.max_abs:.3g}, {how_much}"
    )


def _is_output(gap: Gap) -> bool:
    return gap.path.startswith("output")
