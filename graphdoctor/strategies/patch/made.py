"""Makes one patch for all steps of a program, and tries it where that is wanted."""

from __future__ import annotations

import ast
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from graphdoctor.source.trees import scope_at
from graphdoctor.strategies.patch.alike import (
    Likeness,
    is_decided,
    leave_equal_weights,
    likeness,
    needs_another,
    numbers_that_vary,
    with_times,
)
from graphdoctor.strategies.patch.edits import EDITS, PLAIN_EDITS
from graphdoctor.strategies.patch.edits.capture_step import CAPTURE
from graphdoctor.strategies.patch.edits.edit import Edit, NoProposal, Proposal, not_faster
from graphdoctor.strategies.patch.rerun import Optimizers, Run, Task, reruns
from graphdoctor.strategies.patch.source import (
    CannotEdit,
    Change,
    Sources,
    at_lines_before,
    changed_sources,
    folder_for,
    unified,
)
from graphdoctor.values.figures import joined
from graphdoctor.values.program import Exactness, Patch, ProgramReport, ProgramStep
from graphdoctor.values.sweep import SMALLEST_GAIN

Progress = Callable[[str], None]
_FAILED = ("raised", "interrupted")
_SHAPES_PLAIN = (
    "The captured step runs a batch of another shape, such as a shorter last one, eagerly."
)
_SHAPES = (
    "A batch of another shape, such as a shorter last one, runs eagerly at first, and as a second graph if its shape"
    " repeats. The captured step follows a learning rate that changes. Its results are copies, which you may keep."
)
_TIMED_RUNS = 3  # of each, in turns
_MOST_TIMED_RUNS = 7  # where three do not show which program is faster
_LEAST_OUTSIDE = 0.1  # of a program's time, that is worth a sentence


@dataclass(frozen=True, slots=True)
class Choice:
    """What could be changed for each step, by its number: the preferred proposal first.

    `steps` are what it is proposed for, without any change.
    """

    proposals: tuple[tuple[Proposal, ...], ...] = ()
    is_plain: bool = False
    steps: tuple[ProgramStep, ...] = ()

    @property
    def order(self) -> list[int]:
        """The numbers of the steps, those that train first."""
        return sorted(range(len(self.steps)), key=lambda n: self.steps[n].mode != "training")

    @property
    def is_empty(self) -> bool:
        return not any(self.proposals)


@dataclass(frozen=True, slots=True)
class _Made:
    """One proposal for each of some steps, and the text of the changed files."""

    proposals: dict[int, Proposal] = field(default_factory=dict)
    sources: Sources = field(default_factory=dict)


def with_patch(
    report: ProgramReport,
    folder: str,
    allowed: Exactness = "rounding",
    *,
    is_plain: bool = False,
) -> tuple[ProgramReport, Choice]:
    """The report with a diff of what is preferred for each step, not tried yet, and what else there is.

    `is_plain`: what is written uses torch only, and where nothing can be written the report says why.
    """
    if report.ending in _FAILED:
        return report, Choice()
    edits = PLAIN_EDITS if is_plain else EDITS
    found = [_proposals(step, allowed, edits) for step in report.steps]
    choice = Choice(tuple(proposals for proposals, _ in found), is_plain, report.steps)
    made, reasons = _together(choice)
    for number, (_, reason) in enumerate(found):
        reasons.setdefault(number, reason)
    report = _written(report, made, reasons, folder, is_plain=is_plain)
    why = [f"Step {number + 1}: {why}." for number, why in sorted(reasons.items()) if why]
    if is_plain and why and choice.is_empty:
        report = replace(report, patch=Patch("left out", tried=" ".join(why)))
    return report, choice


def _proposals(
    step: ProgramStep, allowed: Exactness, edits: Iterable[Edit]
) -> tuple[tuple[Proposal, ...], str]:
    """What every edit proposes for a step, and why the last one that could not does not."""
    if step.report is None:
        return (), ""
    if step.report.verdict == "unknown":
        return (), "nothing is proposed for a step whose verdict is unknown"
    scope = scope_at(step.location.file, step.location.line)
    for decorator in getattr(scope, "decorator_list", ()):
        if ast.unparse(decorator).partition("(")[0] == CAPTURE.decorator:
            return (), "its function is captured already"
    found, reason = [], ""
    for edit in edits:
        try:
            found.append(edit.propose(step))
        except NoProposal as why:
            reason = str(why)
        except CannotEdit as why:
            reason = str(why).rstrip(".")
    kept = tuple(each for each in found if each.exactness == "bitwise" or each.exactness == allowed)
    if found and not kept:
        reason = f"{found[0].edit} is {found[0].exactness}, which --allow {allowed} leaves out"
    slow = [each.gain for each in kept if each.gain and each.gain.mid < SMALLEST_GAIN]
    if slow and len(slow) == len(kept):
        reason = not_faster(slow[0])
    return tuple(each for each in kept if each.gain not in slow), reason


def _together(choice: Choice) -> tuple[_Made, dict[int, str]]:
    """The preferred proposals that go together, training first, and why others are left out."""
    made, reasons = _Made(), dict[int, str]()
    for number in choice.order:
        for proposal in choice.proposals[number]:
            more, reason = _with(made, number, proposal, choice.steps)
            if more is not None:
                made = more
                reasons.pop(number, None)
                break
            reasons.setdefault(number, reason)
    return made, reasons


def _with(
    made: _Made, number: int, proposal: Proposal, steps: Sequence[ProgramStep]
) -> tuple[_Made | None, str]:
    """With one proposal more, or why not: what is called is captured once, and files stay Python."""
    step = steps[number]
    trained = {(each.file, each.expression) for each in step.modules if each.trains}
    for with_other, other in made.proposals.items():
        if other.covers is not None:
            file, lines = other.covers
            if step.location.file == file and step.location.line in lines:
                return None, "its call is in the captured step"
            called = {(each.file, each.expression) for each in steps[with_other].modules}
            both = trained & called & proposal.replaces
            if both and proposal.covers is None:
                return (
                    None,
                    f"the captured step calls `{min(both)[1]}`, which cannot be captured twice",
                )
        if other.replaces & proposal.replaces and set(other.changes) != set(proposal.changes):
            name = min(other.replaces & proposal.replaces)[1]
            return None, f"`{name}` is captured in another step, and its other calls stay eager"
    proposals = dict(sorted({**made.proposals, number: proposal}.items()))
    try:
        changes = (change for each in proposals.values() for change in each.changes)
        return _Made(proposals, changed_sources(changes)), ""
    except CannotEdit as reason:
        return None, str(reason).rstrip(".")


def _written(
    report: ProgramReport, made: _Made, reasons: dict[int, str], folder: str, *, is_plain: bool
) -> ProgramReport:
    """The report with what is made for each of its steps, and why nothing is for the others."""
    steps = [
        _with_change(step, made.proposals[number], is_plain=is_plain)
        if number in made.proposals
        else replace(step, change="", no_change=reasons.get(number, ""), cured=(), handled=())
        for number, step in enumerate(report.steps)
    ]
    report = replace(report, steps=tuple(steps))
    if not made.sources:
        return report
    where = folder_for(made.sources, folder)
    gains = [each.gain for each in made.proposals.values() if each.gain is not None]
    gain = max(gains, key=lambda gain: gain.mid, default=None)
    captures_step = any(each.covers is not None for each in made.proposals.values())
    shapes = "" if not captures_step else _SHAPES_PLAIN if is_plain else _SHAPES
    diff = unified(made.sources, where)
    return replace(report, patch=Patch("not tried", diff, where, speedup=gain, shapes=shapes))


def _with_change(step: ProgramStep, proposal: Proposal, *, is_plain: bool) -> ProgramStep:
    """With what the diff does instead of advice to keep the step as it is."""
    report = step.report
    if report is not None and report.recommendation is not None:
        advice = report.recommendation
        if advice.strategy == "none":
            command = (
                "graphdoctor run --diff FILE --plain" if is_plain else "graphdoctor run --diff"
            )
            sentence = f"Apply what `{command}` writes: {proposal.clause}."
            report = replace(report, recommendation=replace(advice, sentence=sentence))
    step = replace(
        step,
        report=report,
        change=proposal.clause,
        no_change="",
        handled=proposal.handled,
        captured=proposal.captured,
    )
    findings = report.findings if report is not None else ()
    left = {each.rule for each in findings if step.handling_of(each) is None}
    cured = {each.rule for each in findings} - left
    return replace(step, cured=tuple(sorted(cured)))


def tried(
    report: ProgramReport,
    choice: Choice,
    task: Task,
    *,
    time_limit_s: float,
    progress: Progress,
) -> ProgramReport:
    """The report with its diff if the program gives the same results with it, and else without.

    The program of the task is run again, as it is and changed, in processes of its own, each for
    `time_limit_s` at the most. What is preferred for all steps is tried together; if that does not hold, the
    proposals for each step are tried by themselves, and what holds is kept. On a GPU what holds is timed.
    """
    if report.patch is None or not report.patch.diff or choice.is_empty:
        return report
    with reruns(time_limit_s) as run:
        trials = _Trials(task, run, time_limit_s, progress, is_plain=choice.is_plain)
        made, reasons = _together(choice)
        found = trials.of(made)
        if not found.is_same and (
            len(made.proposals) > 1 or any(len(proposals) > 1 for proposals in choice.proposals)
        ):
            made, found, reasons = _one_by_one(choice, trials, found, reasons)
    if found.is_timed:
        sentence = f"{found.sentence}{_where_time_goes(report, made.proposals)}"
        found = dataclasses.replace(found, sentence=sentence)
    if not found.is_same:
        for number, proposal in made.proposals.items():
            reasons[number] = f"{proposal.edit}: {found.sentence.rstrip('.')}"
        made = _Made()
    report = replace(report, steps=choice.steps)
    report = _written(report, made, reasons, task.folder, is_plain=choice.is_plain)
    if not found.is_same or report.patch is None:
        return replace(report, patch=Patch("left out", tried=found.sentence))
    failed = [f"{why}." for number, why in reasons.items() if report.steps[number].change]
    sentence = " ".join([found.sentence, *(f"Not kept: {why}" for why in failed)])
    patch = replace(report.patch, status="same results", tried=sentence)
    if found.speedup is not None:
        patch = replace(patch, speedup=found.speedup, is_measured=True)
    return replace(report, patch=patch)


def _where_time_goes(report: ProgramReport, numbers: Iterable[int]) -> str:
    """What a change of these steps leaves as it is, as sentences; "" where that is little."""
    if not report.wall_s:
        return ""
    loading = report.loading_share
    outside = 1.0 - loading - sum(report.steps[number].share for number in numbers)
    text = ""
    if loading >= _LEAST_OUTSIDE:
        text += (
            f" The program waits for its DataLoaders for {loading:.0%} of its time, which no graph shortens: load on"
            " more workers (`num_workers`), or keep the data on the GPU."
        )
    if outside >= _LEAST_OUTSIDE:
        text += f" {outside:.0%} of its time is outside the changed steps{' and the loading' if text else ''}."
    return text


def _one_by_one(
    choice: Choice,
    trials: _Trials,
    together: Likeness,
    reasons: dict[int, str],
) -> tuple[_Made, Likeness, dict[int, str]]:
    """What holds of the proposals for each step by themselves, as far as it holds together."""
    kept, found = _Made(), together
    for number in choice.order:
        for proposal in choice.proposals[number]:
            more, reason = _with(kept, number, proposal, choice.steps)
            if more is None:
                reasons.setdefault(number, reason)
                continue
            likely = trials.of(more)
            if likely.is_same:
                kept, found = more, likely
                break
            reasons[number] = f"{proposal.edit}: {likely.sentence.rstrip('.')}"
    return kept, found if kept.proposals else together, reasons


class _Trials:
    """Runs of the program as it is, which are made once, and of the program with changes."""

    def __init__(
        self,
        task: Task,
        run: Callable[[Task], Run],
        time_limit_s: float,
        progress: Progress,
        *,
        is_plain: bool,
    ) -> None:
        self._task, self._run, self._progress, self._is_plain = task, run, progress, is_plain
        self._time_limit_s = time_limit_s
        self._plain: list[Run] = []
        # The program once more, as it is or with changes that round.
        self._controls: dict[tuple[Optimizers | Change | bool, ...], Run] = {}
        self._found: dict[str, Likeness] = {}

    def of(self, made: _Made) -> Likeness:
        """Whether the program gives the same results with what was made, and on a GPU how fast it is."""
        key = repr(sorted(made.sources.items()))
        if key not in self._found:
            self._found[key] = self._tried(made)
        return self._found[key]

    def _tried(self, made: _Made) -> Likeness:
        """The changed program takes as many steps as the program as it is took in half of its time."""
        if not self._plain:
            self._progress("running the program again, as it is")
            first = self._run(dataclasses.replace(self._task, enough_s=self._time_limit_s / 2))
            self._plain.append(first)
            if first.was_stopped:
                self._task = dataclasses.replace(self._task, most_steps=first.steps)
        plain = self._plain[0]
        after = {file: text for file, (_, text) in made.sources.items()}
        task = dataclasses.replace(self._task, sources=after)
        self._progress("running the changed program")
        changed = self._run(task)
        captures = any(each.captures for each in made.proposals.values())
        rounds = any(each.exactness == "rounding" for each in made.proposals.values())
        found = likeness(plain, changed, captures=captures)
        if needs_another(plain, changed):
            changes = [each for one in made.proposals.values() for each in one.rounded]
            found = self._beside_controls(plain, changed, changes, captures=captures, rounds=rounds)
            if (not found.is_same or found.is_loose) and changed.step_us is not None:
                found = self._in_one_order(task, changes if rounds else (), rounds=rounds) or found
        sentence = at_lines_before(found.sentence, made.sources)
        found = dataclasses.replace(found, sentence=sentence)
        if not found.is_same or changed.step_us is None:
            return found
        return self._timed(found, task, changed)

    def _beside_controls(
        self,
        plain: Run,
        changed: Run,
        rounded: Sequence[Change],
        *,
        captures: bool,
        rounds: bool,
    ) -> Likeness:
        """Where results differ: whether they equal those with capturable optimizers, or differ as rounding does."""
        if captures and rounds:
            control, kernels = self._with_kernels(rounded, rounds=True)
            found = likeness(control, changed)
            if not found.is_same and leave_equal_weights(control, changed):
                varying = numbers_that_vary(plain, self._control("as they are"))
                found = likeness(control, changed, varying=varying)
            if found.is_same:
                return _in_both(kernels, found)
        control = self._control("nudged" if rounds else "as they are")
        varying = frozenset() if rounds else numbers_that_vary(plain, control)
        return likeness(plain, changed, control, captures=captures, rounds=rounds, varying=varying)

    def _in_one_order(
        self, task: Task, rounded: Sequence[Change], *, rounds: bool
    ) -> Likeness | None:
        """Where a program differs from itself: both with torch's deterministic algorithms, which add in one order.

        A GAN amplifies another order of additions within some steps, by no fixed amount. None where the results
        differ there, too, or where the program repeats itself as it is.
        """
        if not needs_another(self._plain[0], self._control("as they are")):
            return None
        control, kernels = self._with_kernels(rounded, rounds=rounds, in_one_order=True)
        self._progress("running the changed program with deterministic algorithms")
        changed = self._run(dataclasses.replace(task, in_one_order=True))
        found = likeness(control, changed)
        return _in_both(kernels, found) if found.is_same else None

    def _with_kernels(
        self, rounded: Sequence[Change], *, rounds: bool, in_one_order: bool = False
    ) -> tuple[Run, list[str]]:
        """The program as it is, computing as a captured step does where the change `rounds`, and with what that is."""
        optimizers: Optimizers = "as they are"
        kernels = ["deterministic algorithms"] if in_one_order else []
        if rounds:
            optimizers = "capturable" if self._is_plain else "captured"
            kernels += ["capturable optimizers", *(["averages in one call"] if rounded else [])]
        return self._control(optimizers, rounded, in_one_order=in_one_order), kernels

    def _control(
        self,
        optimizers: Optimizers,
        changes: Sequence[Change] = (),
        *,
        in_one_order: bool = False,
    ) -> Run:
        key = (optimizers, in_one_order, *changes)
        if key not in self._controls:
            self._progress("running the program as it is once more")
            after = {file: text for file, (_, text) in changed_sources(changes).items()}
            task = dataclasses.replace(
                self._task, optimizers=optimizers, sources=after, in_one_order=in_one_order
            )
            self._controls[key] = self._run(task)
        return self._controls[key]

    def _timed(self, found: Likeness, task: Task, changed: Run) -> Likeness:
        """Both in turns, so that a slow phase of the machine meets both, and as long as one run may take."""
        runs, ends_at_s = [changed], time.monotonic() + self._time_limit_s
        for number in range(1, _MOST_TIMED_RUNS):
            is_late = time.monotonic() > ends_at_s
            if number >= _TIMED_RUNS and (is_late or is_decided(self._plain[:number], runs)):
                break
            self._progress(f"timing, run {number + 1} of each")
            if len(self._plain) <= number:
                self._plain.append(self._run(self._task))
            runs.append(self._run(task))
        return with_times(found, self._plain[: len(runs)], runs)


def _in_both(kernels: Sequence[str], found: Likeness) -> Likeness:
    sentence = f"with {joined(kernels)} in both, {found.sentence}"
    return dataclasses.replace(found, sentence=sentence)
