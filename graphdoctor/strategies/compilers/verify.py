"""A step in other code than eager's -> whether it computes the same function, and how far it rounds away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.work import matrix_flops
from graphdoctor.graphs.compare import Gap, is_as_far, is_noise
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.other_rounding import OtherRounding, rounded_anew
from graphdoctor.proof.twins import TwinTrial, gaps_of, kept, verified, wrong
from graphdoctor.target.state.globals import read_precision
from graphdoctor.values.captures import Verification
from graphdoctor.values.recording import Iteration, Op

_TF32 = 2.0**-11  # ten bits of mantissa
_BY_DTYPE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_TENSOR_CORES_WITH_TF32 = (8, 0)


class Digits(Struct, frozen=True):
    """`eps` is the rounding of one product; 0.0: that of each tensor's own dtype."""

    whose: str = "eager"
    eps: float = 0.0


OWN_DIGITS = Digits()


def digits_of(iteration: Iteration) -> Digits:
    """Those of the coarsest product of the step, on the current GPU.

    cuDNN takes TF32 for convolutions unless it is forbidden, and autocast a half for many products:
    a float32 that comes from such has no more digits than they.
    """
    found = [digits for op in iteration.ops if (digits := _of_product(op)) is not None]
    return max(found, key=lambda digits: digits.eps, default=OWN_DIGITS)


def _of_product(op: Op) -> Digits | None:
    if not op.is_cuda or not matrix_flops(op):
        return None
    dtype = next((use.dtype for use in op.inputs if "float" in use.dtype), "")
    if dtype in _BY_DTYPE:
        return Digits(dtype, _BY_DTYPE[dtype])
    if dtype == "float32" and _may_be_tf32(is_convolution="convolution" in op.base_name):
        return Digits("TF32", _TF32)
    return None


def _may_be_tf32(*, is_convolution: bool) -> bool:
    if torch.cuda.get_device_capability() < _TENSOR_CORES_WITH_TF32:
        return False
    backend: Any = torch.backends.cudnn if is_convolution else torch.backends.cuda.matmul
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # torch 2.9 and newer: set by name, which the old switch does not answer
        return read_precision(("cuda", "conv" if is_convolution else "matmul")) == "tf32"


_METHOD = "to half of {whose}'s digits"
_RANDOM = (
    "the step draws random numbers, and generated code draws others than eager: what differs in "
    "{path} may be that, or an error"
)
_AS_FAR = (
    "; eager's own result moves by up to {moved:.3g} if its state is rounded before each step, so "
    "rounding explains the difference and the result is not verified"
)


@dataclass(slots=True)
class CompiledJudge:
    """Judges a trial by half the digits: compilers fuse and reorder, and round differently.

    `deviation`, once judged: the largest difference of an output, relative to its magnitude.
    `is_unprovable`: what differs may be other random numbers, or one rounding moves eager as far, and
    nothing else is known against it.
    """

    is_random: bool
    digits: Digits = OWN_DIGITS
    deviation: float | None = None
    is_unprovable: bool = False

    def __call__(self, trial: TwinTrial) -> Verification:
        expected = kept(trial.eager())
        far = self._far(trial, expected)
        if any(far):  # rounding grows from step to step
            trial = trial.in_step(expected)
            far = self._far(trial, expected)
        method = _METHOD.format(whose=self.digits.whose)
        if not any(far):
            return replace(verified(trial, expected, self._note()), method=method)
        return replace(self._judge_far(trial, far), method=method)

    def _far(self, trial: TwinTrial, expected: Sequence[Footprint]) -> list[list[Gap]]:
        """What neither rounding explains nor how far eager is from itself."""
        rounding = OtherRounding(expected, eps=self.digits.eps)
        gaps = gaps_of(expected, rounding.aligned(trial.replays()))
        self.deviation = _largest([gap for step in gaps for gap in step if gap.is_in_output])
        drifts = [gap for step in gaps_of(expected, trial.eager()) for gap in step]
        return [
            [gap for gap in step if not is_noise(gap, drifts)] for step in rounding.beyond(gaps)
        ]

    def _judge_far(self, trial: TwinTrial, far: Sequence[Sequence[Gap]]) -> Verification:
        first = next(gap for step in far for gap in step)
        if self.is_random:
            self.is_unprovable, self.deviation = True, None
            return trial.verdict("not-verified", _RANDOM.format(path=first.path))
        outputs = [[gap for gap in step if gap.is_in_output] for step in far]
        moved = self._moved_by_rounding(trial, far)
        self.is_unprovable = moved is not None
        if any(outputs) and moved is None:
            return wrong(
                trial, outputs, detail=f"more than half of {self.digits.whose}'s digits differ"
            )
        # A gradient that is all rounding, through an optimizer that normalises it, moves a weight.
        agree = "" if any(outputs) else "the outputs agree, but "
        how = first.detail or f"differs from eager's by up to {first.max_abs:.3g}"
        why = "" if moved is None else _AS_FAR.format(moved=moved)
        return trial.verdict("not-verified", f"{agree}{first.path} {how}{why}")

    def _moved_by_rounding(self, trial: TwinTrial, far: Sequence[Sequence[Gap]]) -> float | None:
        """How far the first difference moves in eager, whose state is rounded anew before each step.

        None where that does not explain every difference. A gradient that is all rounding, through an
        optimizer that normalises it, moves what the same step computes next (a GAN's two halves), and two
        scores that are nearly equal, which token is the next.
        """
        around = partial(rounded_anew, trial.target.roots, self.digits.eps)
        moved: dict[str, float] = {}
        # The trial is in step by now: what it was led by is what eager left behind.
        for gap in chain.from_iterable(gaps_of(trial.led_by, trial.eager(around=around))):
            if gap.is_measurable:
                moved[gap.path] = max(moved.get(gap.path, 0.0), gap.max_abs)
        gaps = list(chain.from_iterable(far))
        if not all(gap.is_measurable and is_as_far(gap, moved.get(gap.path, 0.0)) for gap in gaps):
            return None
        return moved[gaps[0].path]

    def _note(self) -> str:
        if not self.deviation:
            return "the outputs equal eager's"
        return f"the outputs differ from eager's by at most {self.deviation:.1g} of their magnitude"


def _largest(gaps: Sequence[Gap]) -> float:
    return max((gap.max_abs / gap.scale for gap in gaps if gap.scale), default=0.0)
