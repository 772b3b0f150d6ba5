"""Tries and verifies each capture of a plan, and the graph of the whole step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from graphdoctor.device.observe.collectives import TRANSFERS, is_collective
from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.cost import Cost, Meter
from graphdoctor.graphs.whole_step import CapturedStep, capture_from_start
from graphdoctor.partition import Plan, PlannedRegion
from graphdoctor.proof.regions import verify_regions
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record.session import Session
from graphdoctor.record.without_values import NO_VALUES
from graphdoctor.rules.rule import Hit
from graphdoctor.values.captures import WHOLE_STEP, CaptureOutcome, Region, Verification
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location, file_line
from graphdoctor.values.recording import Iteration, Recording


def refuted_alone(
    session: Session, recording: Recording, diagnosis: Diagnosis, *, whole: CaptureOutcome
) -> tuple[Finding, ...]:
    """Findings for which nothing speaks but that an operator is refused, and it was not.

    `whole` is the refused capture of the whole step: what stands on its line is confirmed.
    """
    regions = {
        place: _region(recording, hits)
        for place, hits in _accused(diagnosis).items()
        if place != whole.location and _has_results(recording, hits)
    }
    if not regions:
        return ()
    found = verify_regions(session, recording.captured, tuple(regions.values()), exact=False)
    cleared = {place for place, outcome in zip(regions, found, strict=True) if outcome.is_verified}
    return tuple(one for one in diagnosis.findings if one.location in cleared)


def _accused(diagnosis: Diagnosis) -> dict[Location, list[Hit]]:
    """The lines of which everything that is said is that their operators are refused."""
    places: dict[Location, list[Hit]] = {}
    for _, hit in diagnosis.hits:
        if hit.location is not None:
            places.setdefault(hit.location, []).append(hit)
    return {place: hits for place, hits in places.items() if all(hit.refused_alone for hit in hits)}


def _has_results(recording: Recording, hits: Sequence[Hit]) -> bool:
    """Whether each leaves something on the device: of an operator that only reads, a replay shows nothing."""
    iterations = {iteration.index: iteration for iteration in recording.captured}
    operators = (iterations[hit.iteration].ops[hit.op_index] for hit in hits)
    return all(any(use.is_cuda for use in op.outputs) for op in operators)


def _region(recording: Recording, hits: Sequence[Hit]) -> PlannedRegion:
    """The operators as a region of their own, in every iteration that has them."""
    spans = tuple(_spans(recording.captured, hits))
    place = hits[0].location
    region = Region(
        name=hits[0].operator,
        operators=len(spans[0][1]),
        launches=len(spans[0][1]),
        phases=(hits[0].phase,),
        modules=(),
        first=place,
        last=place,
        blocked_by=(),
        iterations=tuple(index for index, _ in spans),
        worthwhile=False,
        reason="tried alone",
    )
    return PlannedRegion(region, spans)


def _spans(
    iterations: Sequence[Iteration], hits: Sequence[Hit]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for iteration in iterations:
        own = {hit.op_index for hit in hits if hit.iteration == iteration.index}
        if own:
            yield iteration.index, tuple(sorted(own))


Cut = Callable[[Diagnosis], Plan]


_REFUSED_ELSEWHERE = (
    "the step of another rank cannot be captured, and a rank that replays waits for the others"
)


@dataclass(frozen=True, slots=True)
class Captured:
    """What was tried. `step` is the verified graph of the whole step, which its owner must release.

    `cost` is what it took to make, and `pool_bytes` what its pool holds, on a real GPU. `refuted` are
    findings that the GPU showed to be wrong: by the graph of the whole step, or by one of each operator
    `alone`. `plan` is the one without them.
    """

    outcomes: tuple[CaptureOutcome, ...]
    plan: Plan
    step: CapturedStep | None = None
    cost: Cost | None = None
    refuted: tuple[Finding, ...] = ()
    pool_bytes: int | None = None
    alone: bool = False

    @property
    def limits(self) -> tuple[str, ...]:
        """Which findings are left out, and why."""
        captured = "only its operator" if self.alone else "the whole step"
        return tuple(
            f"{found.rule} {found.name} at {_place(found)} is left out: this GPU captured {captured},"
            " and its replays were right."
            for found in self.refuted
        )

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
    cut: Cut | None = None,
) -> Captured:
    """Capture the whole step, and the regions of the plan where it is not to be one graph.

    A forbidden capture is tried all the same: where it fails, that shows a finding to be true, and
    where a GPU captures it and replays it rightly, the findings to be wrong. One of several may be wrong
    where it fails: each operator that is said to be refused is then tried by itself, and `cut` makes the
    plan without what that refutes. What the emulated device lets pass refutes nothing: it is of one
    mind with the rules.
    `ran` are the recorded eager iterations, where what they left behind was noted.
    """
    meeting = session.device.meeting
    fails = any(found.effect == "capture-fails" for found in diagnosis.findings)
    regions_meet = meeting.agree(repr((plan.whole, _collectives_of_regions(recording, plan))))
    if not meeting.agree(str(fails)):
        return Captured((CaptureOutcome(str(WHOLE_STEP), "refused", _REFUSED_ELSEWHERE),), plan)
    is_gpu = session.device.kind != "emulated"
    meter = _meter(session) if is_gpu else None
    pool = Pool() if meter is not None else None
    outcome, step = prove_whole_step(session, meter, ran=ran, pool=pool)
    outcomes = [outcome]
    refuted: tuple[Finding, ...] = ()
    if step is not None:
        refuted = tuple(_refuted(diagnosis, recording)) if is_gpu else ()
        left = {found.effect for found in diagnosis.findings if found not in refuted}
        if left <= {"replay-is-slow"}:
            cost = meter.cost if meter is not None else None
            reserved = pool.reserved_bytes if pool is not None else None
            return Captured(tuple(outcomes), plan, step, cost, refuted, reserved)
        # Right in these replays, and still not to be recommended: what the findings name can come.
        step.release()
    elif is_gpu and cut is not None and not meeting.has_others:
        refuted = refuted_alone(session, recording, diagnosis, whole=outcome)
        if refuted:
            plan = cut(diagnosis.without(refuted))
    if regions_meet and not plan.whole and session.device.has_values:
        outcomes.extend(verify_regions(session, recording.captured, plan.regions))
    return Captured(tuple(outcomes), plan, refuted=refuted, alone=step is None)


def _collectives_of_regions(recording: Recording, plan: Plan) -> list[list[str]]:
    """The calls in which a replay of each region waits for other ranks. A send waits for its receive."""
    iterations = {iteration.index: iteration for iteration in recording.captured}
    regions = (
        [
            "transfer" if op.base_name in TRANSFERS else op.name
            for op in (iterations[index].ops[place] for place in span)
            if is_collective(op)
        ]
        for planned in plan.regions
        for index, span in planned.spans
    )
    return [called for called in regions if called]


def _refuted(diagnosis: Diagnosis, recording: Recording) -> Iterator[Finding]:
    """Findings that would have made this very capture fail, since they hold for every iteration."""
    every = {iteration.index for iteration in recording.captured}
    seen: dict[tuple[str, Location | None], set[int]] = {}
    for rule, hit in diagnosis.hits:
        seen.setdefault((rule, hit.location), set()).add(hit.iteration)
    for found in diagnosis.findings:
        iterations = seen.get((found.rule, found.location), set())
        if found.effect == "capture-fails" and every <= iterations:
            yield found


def _place(found: Finding) -> str:
    return file_line(found.location) if found.location is not None else found.operator


def _meter(session: Session) -> Meter:
    session.start.restore()
    inputs = session.inputs(0)
    return Meter(lambda: session.call(inputs))


def prove_whole_step(
    session: Session,
    meter: Meter | None = None,
    *,
    ran: EagerRuns | None = None,
    pool: Pool | None = None,
) -> tuple[CaptureOutcome, CapturedStep | None]:
    """Capture the whole step and verify it; the graph only where its replays are right.

    `meter` reads what the capture took. Whoever gets the graph must release it. Its memory is of
    `pool`, if there is one.
    """
    exact = session.device.kind == "emulated"
    made = capture_from_start(session, pool=pool)
    is_made_everywhere = session.device.meeting.everywhere(not isinstance(made, Refusal))
    if isinstance(made, Refusal):
        return made.outcome(WHOLE_STEP), None
    if not is_made_everywhere:
        made.release()
        return CaptureOutcome(str(WHOLE_STEP), "refused", _REFUSED_ELSEWHERE), None
    if meter is not None:
        meter.read()
    if not session.device.has_values:
        outcome = made.outcome(_not_compared(session.target.notes))
        made.release()
        return outcome, None
    verification = verify_whole_step(
        session.target,
        made,
        session.batches_for_proof(),
        exact=exact,
        now=session.start,
        ran=ran,
        meeting=session.device.meeting,
        recapture=partial(capture_from_start, session, is_warm=False),
    )
    outcome = made.outcome(verification)
    if verification.status == "verified":
        return outcome, made
    made.release()
    return outcome, None


def _not_compared(notes: Sequence[str]) -> Verification:
    """`notes` say why the step runs on shapes only: what the page's first sentence says, too."""
    why = next((note.partition(": ")[2] for note in notes if note.startswith(NO_VALUES)), "")
    since = f": {why}" if why else ""
    return Verification("not-verified", 0, 0, "bitwise", f"the step ran without values{since}")
