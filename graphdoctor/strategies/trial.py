"""One strategy and a session -> its row: built, verified, timed, given back; whatever happens, a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.estimate import Observed
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.graphs.cause import in_words, is_refusal, location_of, true_cause
from graphdoctor.graphs.cost import Cost, Meter
from graphdoctor.measure.profile import ready_for_graphs
from graphdoctor.operators import draws
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record.session import Session
from graphdoctor.strategies.built_step import BuiltStep
from graphdoctor.strategies.compilers.verify import OWN_DIGITS, CompiledJudge, digits_of
from graphdoctor.strategies.foresee import predicted_for
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.strategies.timing import Timed, break_even_calls, time_built
from graphdoctor.target import Inputs
from graphdoctor.values.captures import Verification
from graphdoctor.values.errors import GraphDoctorError
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

    @property
    def _is_other_code(self) -> bool:
        """Whether operators may be other ones than eager's: tracing decomposes some, which rounds."""
        return not self.strategy.is_ours or (self.strategy.compiles and not self.is_emulated)

    def carried_out(self, row: StrategyOutcome) -> StrategyOutcome:
        built: Built | None = None
        try:
            meter = self._meter()
            built = self._built()
            row = self._as_built(row, built)
            step = BuiltStep(built, self.session)
            batches = self.session.batches_for_proof()
            self._call_once(step, batches[0])
            cost = meter.read() if meter is not None else None
            judge = self._judge()
            row = self._verified(with_cost(row, cost), step, batches, judge)
            if self._may_be_timed(row, judge):
                if self.terms.await_turn is not None:
                    self.terms.await_turn()
                row = with_times(row, self._timed(step))
            return _with_note(row, self._note(built, row))
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

    def _call_once(self, step: BuiltStep, inputs: Inputs) -> None:
        """Some compile in their first call, which is preparation then."""
        step.start.restore()
        step.load(inputs)
        step.replay()

    def _judge(self) -> CompiledJudge:
        iteration = self.known.iteration
        digits = OWN_DIGITS if self.is_emulated else digits_of(iteration)
        return CompiledJudge(is_random=any(map(draws, iteration.ops)), digits=digits)

    def _may_be_timed(self, row: StrategyOutcome, judge: CompiledJudge) -> bool:
        """Code that draws other random numbers is no answer to recommend, and takes its time all the same."""
        is_right = row.status == "verified"
        return (is_right or judge.is_unprovable) and not self.is_emulated

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
        found = verify_whole_step(
            self.session.target,
            step,
            batches,
            exact=self.is_emulated and self.strategy.is_ours,
            now=self.session.start,
            judge=judge if self._is_other_code else None,
            ran=self.known.ran,
            meeting=self.session.device.meeting,
        )
        return with_verification(row, found, self.known, deviation=judge.deviation)

    def _timed(self, step: BuiltStep) -> Timed:
        return time_built(
            self.session, step, profile=self.terms.profile, measure_s=self.terms.measure_s
        )


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


def _with_note(row: StrategyOutcome, note: str) -> StrategyOutcome:
    return replace(row, reason="; ".join(filter(None, (row.reason, note))))


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
