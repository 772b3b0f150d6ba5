"""Tries every strategy within a budget of time, and recommends one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.device.processes.process import FreshProcesses
from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.estimate import Observed, Regions, estimate
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.partition import Plan, partition
from graphdoctor.strategies.choice import budget_for, chosen, limit_s, needed_s
from graphdoctor.strategies.evidence import Evidence
from graphdoctor.strategies.foresee import foresee, share_of
from graphdoctor.strategies.own_process import Job, in_own_process, own_processes
from graphdoctor.strategies.recommend import (
    NOT_TRIED_YET,
    recommend,
    with_noise_told,
    would_pay_more,
)
from graphdoctor.strategies.strategy import Known, Strategy, varying_shapes
from graphdoctor.strategies.timing import Timed, profile_beside
from graphdoctor.strategies.trial import (
    MEASURE_S,
    Terms,
    carry_out,
    with_cost,
    with_times,
    with_verification,
)
from graphdoctor.values.captures import outcome_of_whole_step
from graphdoctor.values.errors import Interrupted
from graphdoctor.values.figures import ratio_range, ratio_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import bracketed
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.recording import Iteration
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Estimate, NextFix, StrategyOutcome, StrategyStatus

_MAY_BE_WRONG = "its replays were right in this run, but "


def whole_row(
    row: StrategyOutcome, evidence: Evidence, known: Known, *, profile: DeviceProfile
) -> StrategyOutcome | None:
    """The row, from what was foreseen and what came of the capture; None where none was tried."""
    outcome = outcome_of_whole_step(evidence.captured.outcomes)
    if outcome is None:
        return None
    if outcome.status == "refused":
        return replace(
            row,
            status="refused",
            reason=row.reason if row.status == "unfit" else outcome.reason,
            location=outcome.location,
            predicted=None,
            captured_share=None,
            code="",
        )
    verification = outcome.verification
    if verification is None:
        return replace(row, status="not-verified", reason="its replay was not compared", code="")
    if row.status == "unfit" and verification.status == "verified":
        reason = _MAY_BE_WRONG + row.reason
        return replace(row, status="not-verified", reason=reason, verification=verification)
    row = with_cost(with_verification(row, verification, known), evidence.captured.cost)
    session, step = evidence.session, evidence.captured.step
    measured = evidence.speed.measurement
    if measured is None or step is None:
        return row
    inputs = session.inputs(0)
    seen = profile_beside(
        session, lambda: step.call(inputs), start=step.start, measured=measured, profile=profile
    )
    return with_times(row, Timed(measured, *seen))


_MOST_TRIED = 3  # each cuts the recording anew


def next_finding(evidence: Evidence, profile: DeviceProfile) -> tuple[str, NextFix | None]:
    """One sentence and its figures; "" and None if no finding blocks the whole step.

    The gain of a fix is predicted by partitioning the step again without the finding. Without a gain
    that one fix brings, the sentence comes without figures.
    """
    blocking = [one for one in evidence.diagnosis.findings if one.effect != "replay-is-slow"]
    if not blocking:
        return "", None
    iteration = evidence.recording.captured[-1]
    if len({one.location or one.rule for one in blocking}) == 1:
        whole = estimate(iteration, profile).speedup
        rules = list(dict.fromkeys(one.rule for one in blocking))
        block, fix = ("blocks", "the fix") if len(rules) == 1 else ("block", "the fixes")
        sentence = (
            f"Only {' and '.join(rules)}{bracketed(blocking[0].location)} {block} whole-step capture."
            f" Predicted speedup after {fix}: {ratio_range(whole)}."
        )
        return sentence, NextFix(rules[0], blocking[0].location, whole, 1.0, (*rules[1:],))
    now = share_of(_regions(evidence.plan, iteration), iteration)
    found = [(one, _without(one, evidence, profile)) for one in blocking[:_MOST_TRIED]]
    finding, regions = max(found, key=lambda pair: share_of(pair[1], iteration))
    share = share_of(regions, iteration)
    if share <= now:
        first = blocking[0]
        return (
            f"Fix {first.rule}{bracketed(first.location)} first; {len(blocking)} findings block"
            " whole-step capture."
        ), None
    speedup = estimate(iteration, profile, regions).speedup
    sentence = (
        f"Fix {finding.rule}{bracketed(finding.location)} next: {share:.0%} instead of {now:.0%} of the"
        f" launches can then be in graphs. Predicted speedup: {ratio_range(speedup)}."
    )
    return sentence, NextFix(finding.rule, finding.location, speedup, share)


def _without(finding: Finding, evidence: Evidence, profile: DeviceProfile) -> Regions:
    """The regions of the step if the finding's line were as harmless as the others."""
    diagnosis = evidence.diagnosis
    hits = tuple(
        (rule, hit)
        for rule, hit in diagnosis.hits
        if hit.location != finding.location or (finding.location is None and rule != finding.rule)
    )
    others = tuple(one for one in diagnosis.findings if one is not finding)
    cut = partition(evidence.recording, Diagnosis(others, hits), profile=profile)
    return _regions(cut, evidence.recording.captured[-1])


def _regions(plan: Plan, iteration: Iteration) -> Regions:
    worthwhile = (each for each in plan.regions if each.region.worthwhile)
    return tuple(filter(None, (each.ops_in(iteration.index) for each in worthwhile)))


WHOLE_NAME = "whole"
_NOTHING_LEFT = "the whole step is already one graph"
_NO_RANKS = "on a GPU each strategy runs in a separate process, which has no other ranks"
_NOT_ELSEWHERE = "another rank skips it, and ranks only try a strategy together"
_SAME_GRAPHS = "{same}, which makes the same graphs of eager's kernels, {what}"
_DID = {"refused": "was refused", "wrong": "did not match eager"}
# From the worst; what is missing here is no failure of a rank.
_WORST = ("wrong", "failed", "refused", "not-verified", "timed-out", "unfit")
_NO_GAIN = "predicted speedup {speedup}; use `--strategies {name}` to run it anyway"


@dataclass(slots=True)
class Contest:
    """One analysis whose strategies are compared, with the row of each so far.

    `spec` finds its target again in another process. None: nothing does, as for the step of a running program,
    so that every strategy is tried in this process, between snapshots of the step's state.
    """

    evidence: Evidence
    known: Known
    options: AnalyzeOptions
    profile: DeviceProfile
    spec: str | None
    deadline_s: float  # by time.monotonic()
    processes: FreshProcesses
    rows: dict[str, StrategyOutcome] = field(default_factory=dict)
    more: str = ""  # what budget all that are to be tried take, as a clause; "" if the budget does

    @property
    def is_emulated(self) -> bool:
        return bool(self.evidence.session.device.kind == "emulated")

    @property
    def meeting(self) -> Meeting:
        return self.evidence.session.device.meeting

    @property
    def has_processes(self) -> bool:
        return self.spec is not None and not self.is_emulated and not self.meeting.has_others

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def begin(self, strategies: Sequence[Strategy], estimated: Estimate | None) -> list[Strategy]:
        """Predict each row, take that of the whole step from its capture, and return what is left to try."""
        observed = observed_by(estimated)
        for one in strategies:
            self.rows[one.name] = foresee(one, self.known, self.profile, observed=observed)
        found = None
        if WHOLE_NAME in self.rows:
            foreseen = self.rows[WHOLE_NAME]
            found = whole_row(foreseen, self.evidence, self.known, profile=self.profile)
            self.rows[WHOLE_NAME] = as_on_all_ranks(found or foreseen, self.meeting)
        if self.evidence.captured.step is not None:
            self.evidence.captured.step.release()
        if not self.is_emulated:
            torch.cuda.empty_cache()  # other processes need the memory
        waiting = [one for one in strategies if one.name != WHOLE_NAME or found is None]
        if not self.is_emulated and not self.meeting.has_others:
            trying, iteration = list(filter(self.is_to_try, waiting)), self.known.iteration
            if sum(needed_s(one, iteration) for one in trying) > self.left_s:
                spent_s = max(0.0, self.options.budget_s - self.left_s)
                budget = budget_for(trying, iteration, spent_s=spent_s)
                self.more = f"; all take about --budget {budget}"
        return waiting

    def try_one(self, strategy: Strategy, later: Sequence[Strategy]) -> None:
        """Fill in the row of a strategy, before those that come later."""
        row, left = self.rows[strategy.name], self.untried(strategy, more=self.more)
        if not self.meeting.everywhere(left is None):
            row = left or replace(row, status="unfit", reason=_NOT_ELSEWHERE, code="")
        elif left is not None:
            row = left
        elif self.is_emulated or self.spec is None:
            row = self._in_this_process(strategy, row, later)
        else:
            job = self.job(self.spec, strategy, row, later)
            row = in_own_process(self.processes, job, is_last=not later)
            if row.status == "timed-out":
                row = replace(row, reason=row.reason + self.more)
        self.rows[strategy.name] = as_on_all_ranks(row, self.meeting)

    def _in_this_process(
        self, strategy: Strategy, row: StrategyOutcome, later: Sequence[Strategy]
    ) -> StrategyOutcome:
        """Nothing can end it there, so that one that compiles is tried only where its time is likely to do."""
        needed = needed_s(strategy, self.known.iteration)
        limit = limit_s(strategy, later, self.known.iteration, left_s=self.left_s)
        if not self.is_emulated and strategy.compiles and needed > limit:
            reason = f"it is expected to take {needed:.0f} s, and {limit:.0f} s are left"
            return replace(row, status="timed-out", reason=reason, code="")
        terms = Terms(self.profile)
        if not self.is_emulated:
            observed = observed_by(self.evidence.speed.estimate)
            terms = Terms(self.profile, min(MEASURE_S, limit / 6), observed=observed)
        return carry_out(row, strategy, self.evidence.session, self.known, terms=terms)

    def untried(self, strategy: Strategy, *, more: str) -> StrategyOutcome | None:
        """The row of a strategy that is not tried here; None of one that is."""
        row = self.rows[strategy.name]
        if row.status != "planned":
            return row
        if why := self._why_not(strategy):
            return replace(row, status="unfit", reason=why, code="")
        if strategy.compiles and self.is_emulated:
            return row
        if self.left_s <= 0:
            reason = f"not tried within the budget of {self.options.budget_s:g} s{more}"
            return replace(row, status="timed-out", reason=reason, code="")
        if self.meeting.has_others and not self.is_emulated:
            return replace(row, status="unfit", reason=_NO_RANKS, code="")
        return None

    def is_to_try(self, strategy: Strategy) -> bool:
        return self.rows[strategy.name].status == "planned" and not self._why_not(strategy)

    def _why_not(self, strategy: Strategy) -> str:
        """Why one of ours that fits is not tried unless it is asked for; "" where it is.

        A captured whole step may leave it nothing to gain; what has to compile is not tried where it is
        predicted to be slower than eager; nor are graphs of compiled kernels where those of eager's did not do.
        """
        if self.options.strategies is not None or not strategy.is_ours:
            return ""
        whole, predicted = self.rows.get(WHOLE_NAME), self.rows[strategy.name].predicted
        may_beat_whole = strategy.with_eager_kernels == WHOLE_NAME
        if whole is not None and whole.status == "verified" and not may_beat_whole:
            return _NOTHING_LEFT
        eager = self.rows.get(strategy.with_eager_kernels)
        if eager is not None and eager.status in ("refused", "wrong"):
            return _SAME_GRAPHS.format(same=eager.strategy, what=_DID[eager.status])
        if strategy.compiles and predicted is not None and predicted.mid < 1.0:
            return _NO_GAIN.format(speedup=ratio_text(predicted.mid), name=strategy.name)
        return ""

    def job(
        self, spec: str, strategy: Strategy, row: StrategyOutcome, later: Sequence[Strategy]
    ) -> Job:
        """The trial of a strategy in a process that finds the target again by its `spec`."""
        limit = limit_s(strategy, later, self.known.iteration, left_s=self.left_s)
        return Job(
            profile=self.profile,
            spec=spec,
            options=self.options,
            strategy=strategy,
            row=row,
            known=dataclasses.replace(self.known, roots={}, ran=None),
            measure_s=min(MEASURE_S, limit / 6),
            time_limit_s=limit,
            kept_inputs=self.evidence.session.target.kept_inputs,
            observed=observed_by(self.evidence.speed.estimate),
        )


def compare_strategies(
    report: Report,
    evidence: Evidence,
    *,
    options: AnalyzeOptions,
    profile: DeviceProfile,
    spec: str | None,
    deadline_s: float,
    progress: Callable[[str], None],
    show: Callable[[Report], None],
) -> Report:
    """The report with a row for each strategy that `options` ask for, and a recommendation.

    `show` gets the report so far before each trial. No strategy is begun after `deadline_s`, by
    `time.monotonic()`. Raises Interrupted, with the rows that are known, if Ctrl-C is pressed while
    strategies are tried. The graph of the whole step, which the analysis made and verified, is released
    on the way.
    """
    target = evidence.session.target
    known = Known(
        mode=target.mode,
        roots=target.roots,
        findings=report.findings,
        safe_modules=report.safe_modules,
        iteration=evidence.recording.captured[-1],
        varying=varying_shapes(evidence.recording.captured),
        ran=evidence.ran,
    )
    with own_processes() as processes:
        contest = Contest(evidence, known, options, profile, spec, deadline_s, processes)
        strategies = chosen(options.strategies, is_emulated=contest.is_emulated)
        if contest.has_processes and any(one.name != WHOLE_NAME for one in strategies):
            processes.start_next()  # while the rows are predicted here
        # A fix gains nothing if a GPU does not run the step at all.
        sentence, fix = next_finding(evidence, profile) if report.runs_on_gpu else ("", None)

        def with_rows(rows: Iterable[StrategyOutcome]) -> Report:
            every = with_noise_told(tuple(rows))
            then = " ".join(filter(None, (sentence, would_pay_more(every))))
            advice = recommend(every, report.findings, then=then)
            if advice is not None:
                advice = replace(advice, next_fix=fix)
            return replace(report, strategies=every, recommendation=advice)

        waiting = contest.begin(strategies, report.estimate)
        for number, strategy in enumerate(waiting, start=1):
            try:
                shown = dict(contest.rows)
                for one in waiting[number - 1 :]:
                    later_row = replace(shown[one.name], reason=NOT_TRIED_YET)
                    shown[one.name] = contest.untried(one, more="") or later_row
                show(with_rows(shown.values()))
                progress(f"trying {strategy.name} ({number} of {len(waiting)}{contest.more})")
                contest.try_one(strategy, list(filter(contest.is_to_try, waiting[number:])))
            except KeyboardInterrupt:
                for one in waiting[number - 1 :]:
                    row = contest.rows[one.name]
                    cut = replace(row, status="timed-out", reason="interrupted", code="")
                    contest.rows[one.name] = contest.untried(one, more=contest.more) or cut
                raise Interrupted(with_rows(contest.rows.values())) from None
    return with_rows(contest.rows.values())


def observed_by(estimated: Estimate | None) -> Observed | None:
    """The eager step's own times, if they were measured."""
    if estimated is None or estimated.basis != "measured":
        return None
    return Observed(estimated.eager_us.mid, estimated.device_busy_us.mid)


class _Said(Struct, frozen=True):
    """What a rank says of a strategy."""

    status: StrategyStatus
    reason: str


def as_on_all_ranks(row: StrategyOutcome, meeting: Meeting) -> StrategyOutcome:
    """The row as the rank has it where it came off worst; every rank has to ask.

    Where one broke off, the others may wait for it still: all begin to count anew.
    """
    meeting.afresh()
    mine = _Said(row.status, row.reason)
    ranks = meeting.answers(mine, _Said)
    worst = min(ranks, key=lambda said: _place(said.status))
    if _place(worst.status) == _place(row.status):
        return row
    reason = f"on rank {ranks.index(worst)}: {worst.reason}"
    return replace(row, status=worst.status, reason=reason, code="")


def _place(status: StrategyStatus) -> int:
    return _WORST.index(status) if status in _WORST else len(_WORST)
