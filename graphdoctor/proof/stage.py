"""A session, its recording and plan -> each capture that was tried, verified; and the graph of the whole step."""

from __future__ import annotations

from dataclasses import dataclass

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.cost import Cost, Meter
from graphdoctor.graphs.whole_step import CapturedStep, capture_from_start
from graphdoctor.partition import Plan
from graphdoctor.proof.eager_runs import EagerRuns
from graphdoctor.proof.regions import verify_regions
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record.session import Session
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import WHOLE_STEP, CaptureOutcome


@dataclass(frozen=True, slots=True)
class Captured:
    """What was tried. `step` is the verified graph of the whole step, which its owner must release.

    `cost` is what it took to make, on a real GPU.
    """

    outcomes: tuple[CaptureOutcome, ...]
    step: CapturedStep | None = None
    cost: Cost | None = None

    def release(self) -> None:
        """Give back the graph of the whole step, if there is one."""
        if self.step is not None:
            self.step.release()


def capture_and_verify(
    session: Session,
    recording: Recording,
    diagnosis: Diagnosis,
    plan: Plan,
    *,
    ran: EagerRuns | None = None,
) -> Captured:
    """Capture the whole step where nothing forbids it, else the regions of the plan.

    On the emulated device a forbidden capture is tried all the same, since it can do no harm and
    shows that the finding is true; a real device is left alone, which a failed capture may spoil.
    `ran` are the recorded eager iterations, where what they left behind was noted.
    """
    emulated = session.device.kind == "emulated"
    effects = {finding.effect for finding in diagnosis.findings}
    outcomes: list[CaptureOutcome] = []
    step = None
    if emulated or "capture-fails" not in effects:
        meter = None if emulated else _meter(session)
        outcome, step = prove_whole_step(session, meter, ran=ran)
        outcomes.append(outcome)
        if step is not None and effects <= {"replay-is-slow"}:
            return Captured(tuple(outcomes), step, meter.cost if meter is not None else None)
        if step is not None:
            # Right in these replays, and still not to be recommended: what the findings name can come.
            step.release()
    if not plan.whole:
        outcomes.extend(verify_regions(session, recording.captured, plan))
    return Captured(tuple(outcomes))


def _meter(session: Session) -> Meter:
    session.start.restore()
    inputs = session.inputs(0)
    return Meter(lambda: session.call(inputs))


def prove_whole_step(
    session: Session, meter: Meter | None = None, *, ran: EagerRuns | None = None
) -> tuple[CaptureOutcome, CapturedStep | None]:
    """Capture the whole step and verify it; the graph only where its replays are right.

    `meter` reads what the capture took. Whoever gets the graph must release it.
    """
    exact = session.device.kind == "emulated"
    made = capture_from_start(session)
    if isinstance(made, Refusal):
        return made.outcome(WHOLE_STEP), None
    if meter is not None:
        meter.read()
    verification = verify_whole_step(
        session.target,
        made,
        session.batches_for_proof(),
        exact=exact,
        now=session.start,
        ran=ran,
    )
    outcome = made.outcome(verification)
    if verification.status == "verified":
        return outcome, made
    made.release()
    return outcome, None
