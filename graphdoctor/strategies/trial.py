"""Builds, verifies (also in other code than eager's) and times one strategy; gives a row in any case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.estimate import Observed
from graphdoctor.estimate.costs import matrix_flops
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.graphs.cause import in_words, is_refusal, location_of, true_cause
from graphdoctor.graphs.compare import Gap, is_as_far, is_noise
from graphdoctor.graphs.cost import Cost, Meter
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.measure.profile import ready_for_graphs
from graphdoctor.operators import draws
from graphdoctor.proof.other_rounding import OtherRounding, rounded_anew
from graphdoctor.proof.twins import TwinTrial, gaps_of, kept, verified, wrong
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record.session import Session
from graphdoctor.strategies.foresee import predicted_for
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.strategies.timing import Timed, break_even_calls, time_built
from graphdoctor.strategies.whole import BuiltStep, built_again
from graphdoctor.target import Inputs
from graphdoctor.target.state.globals import read_precision
from graphdoctor.values.captures import Verification
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.recording import Iteration, Op
from graphdoctor.values.speed import StrategyOutcome

MEASURE_S = 4.0  # six pairs are timed whatever they take; an interval seldom needs more
_NOT_ELSEWHERE = "it could not be built on another rank"
_NO_GRAPH = "torch launched no part of it through CUDA graphs, and did not say why"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a trial is held to: the GPU that is predicted for, seconds to measure for, eager's own times.

    `await_turn` returns when it may time: benchmarks/gpu/row.py prepares beside others, and times alone.
    """

    profile: DeviceProfile
    measure_s: float = MEASURE_S
    await_turn: Callable[[], None] | None = None
    observed: Observed | None = None


def carry_out(
    row: StrategyOutcome, strategy: Strategy, session: Session, known: Known, *, terms: Terms
) -> StrategyOutcome:
    """The row of a strategy that fits, with what came of trying it."""
    trial = _Trial(strategy, session, known, terms)
    stream = torch.cuda.current_stream()
    try:
        return trial.carried_out(replace(row, reason=""))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return not_come_about(replace(row, reason="", code=""), error)
    finally:
        # torch.cuda.graph stays on its stream where ending a spoilt capture raises.
        torch.cuda.set_stream(stream)
        session.start.restore()


@dataclass(frozen=True, slots=True)
class _Trial:
    strategy: Strategy
    session: Session
    known: Known
    terms: Terms

    @property
    def is_emulated(self) -> bool:
        return bool(self.session.device.kind == "emulated")

    def carried_out(self, row: StrategyOutcome) -> StrategyOutcome:
        built: Built | None = None
        try:
            meter = self._meter()
            built = self._built()
            row = self._as_built(row, built)
            step = BuiltStep(built, self.session)
            batches = self.session.batches_for_proof()
            # Some compile in their first call, which is preparation then.
            step.start.restore()
            step.load(batches[0])
            step.replay()
            cost = meter.read() if meter is not None else None
            iteration = self.known.iteration
            digits = OWN_DIGITS if self.is_emulated else digits_of(iteration)
            judge = CompiledJudge(is_random=any(map(draws, iteration.ops)), digits=digits)
            row = self._verified(with_cost(row, cost), step, batches, judge)
            # Code that draws other random numbers is not recommended, and takes its time all the same.
            if (row.status == "verified" or judge.is_unprovable) and not self.is_emulated:
                terms = self.terms
                if terms.await_turn is not None:
                    terms.await_turn()
                seconds = terms.measure_s
                timed = time_built(self.session, step, profile=terms.profile, measure_s=seconds)
                row = with_times(row, timed)
            reasons = filter(None, (row.reason, self._note(built, row)))
            return replace(row, reason="; ".join(reasons))
        finally:
            if built is not None:
                built.release()

    def _built(self) -> Built:
        """On all ranks, or on none."""
        built: Built | None = None
        try:
            built = self.strategy.build(self.session, self.known)
        finally:
            is_everywhere = self.session.device.meeting.everywhere(built is not None)
        if not is_everywhere:
            built.release()
            raise CannotBuild(_NOT_ELSEWHERE)
        return built

    def _as_built(self, row: StrategyOutcome, built: Built) -> StrategyOutcome:
        """Predicted from what went into graphs, where that is less than was foreseen."""
        held = built.holds(self.known)
        if held is None or row.predicted is None:
            return row
        terms = self.terms
        return predicted_for(
            row, held.regions, held.calls, self.known, terms.profile, observed=terms.observed
        )

    def _meter(self) -> Meter | None:
        self.session.start.restore()
        if self.is_emulated:
            return None
        ready_for_graphs()
        inputs = self.session.inputs(0)
        meter = Meter(lambda: self.session.call(inputs))
        self.session.start.restore()
        return meter

    def _note(self, built: Built, row: StrategyOutcome) -> str:
        """What the result says of itself, else that a compiler of CUDA graphs made none."""
        if built.note:
            return built.note
        has_graphs = self.strategy.has_graphs
        return _NO_GRAPH if has_graphs and row.launches and not row.captured_share else ""

    def _verified(
        self,
        row: StrategyOutcome,
        step: BuiltStep,
        batches: tuple[Inputs, ...],
        judge: CompiledJudge,
    ) -> StrategyOutcome:
        # Operators may be other ones than eager's: tracing decomposes some, which rounds.
        is_generated = self.strategy.compiles and not self.is_emulated
        is_other_code = is_generated or not self.strategy.is_ours
        found = verify_whole_step(
            self.session.target,
            step,
            batches,
            exact=self.is_emulated and self.strategy.is_ours,
            now=self.session.start,
            judge=judge if is_other_code else None,
            ran=self.known.ran,
            meeting=self.session.device.meeting,
            recapture=partial(
                built_again, self.session, partial(self.strategy.build, self.session, self.known)
            ),
        )
        return with_verification(row, found, self.known, deviation=judge.deviation)


def with_verification(
    row: StrategyOutcome, found: Verification, known: Known, *, deviation: float | None = None
) -> StrategyOutcome:
    """The row with its verdict. Where the emulation had to guess, right is still not verified."""
    reason = next((op.fallback for op in known.iteration.ops if op.fallback is not None), None)
    row = replace(
        row, status=found.status, reason=found.reason, verification=found, deviation=deviation
    )
    if found.status == "verified" and reason is not None:
        row = replace(row, status="not-verified", reason=reason)
    return row if row.status == "verified" else replace(row, code="")


def with_cost(row: StrategyOutcome, cost: Cost | None) -> StrategyOutcome:
    """The row with what it took to make; as it is where that is not known."""
    if cost is None:
        return row
    return replace(
        row,
        prepare_s=cost.prepare_s,
        extra_bytes=cost.extra_bytes,
        peak_bytes=cost.peak_bytes,
    )


def with_times(row: StrategyOutcome, timed: Timed) -> StrategyOutcome:
    """Times and shares of a row; what was seen stands in the place of what was predicted."""
    row = replace(row, measurement=timed.measurement)
    if row.prepare_s is not None:
        row = replace(row, break_even_calls=break_even_calls(row.prepare_s, timed.measurement))
    if timed.eager is not None:
        eager = timed.eager
        row = replace(row, launches_eager=eager.launches, busy_share_eager=eager.busy_share)
    if timed.fast is not None:
        fast = timed.fast
        row = replace(
            row,
            launches=fast.launches,
            busy_share=fast.busy_share,
            captured_share=fast.graphed_share,
        )
    return row


def not_come_about(row: StrategyOutcome, error: BaseException) -> StrategyOutcome:
    """The row of an attempt that ended in an error, with the cause that came first."""
    if isinstance(error, EmulationLimit):
        return replace(row, status="not-verified", reason=str(error))
    if isinstance(error, CannotBuild):
        behind = true_cause(error.__cause__) if error.__cause__ is not None else error
        return replace(row, status="refused", reason=str(error), location=location_of(behind))
    cause = true_cause(error)
    reason = str(cause) if isinstance(cause, GraphDoctorError) else in_words(cause)
    status = "refused" if is_refusal(cause) else "failed"
    return replace(row, status=status, reason=reason, location=location_of(cause))


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
        self.deviation = max(
            (
                gap.max_abs / gap.scale
                for gap in [gap for step in gaps for gap in step if gap.is_in_output]
                if gap.scale
            ),
            default=0.0,
        )
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
