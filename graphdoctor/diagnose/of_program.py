"""A program that ran, and the steps that were seen in it -> its report."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor import __version__
from graphdoctor.target.program.launch import Ended, Program
from graphdoctor.target.program.loop_step import LoopStep
from graphdoctor.target.program.loops import STEPS_TO_LEARN
from graphdoctor.target.program.step import SeenStep
from graphdoctor.target.program.studies import FEWEST_STEPS
from graphdoctor.target.program.watch import Watch
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import file_line
from graphdoctor.values.program import (
    ON_CPU,
    PROGRAM_SCHEMA_VERSION,
    Ending,
    HostWait,
    NotReached,
    ProgramReport,
    ProgramStep,
    to_gpu,
)
from graphdoctor.values.report import Machine, Report

NO_STEPS = (
    "No step was seen that repeats: neither training steps, which end with optimizer.step(), nor two"
    " calls of a module from one line."
)


def program_report(
    program: Program, ended: Ended, watch: Watch, *, wall_s: float, machine: Machine | None
) -> ProgramReport:
    """What was seen until the program ended, however it ended."""
    reports = [step.outcome for step in watch.steps if isinstance(step.outcome, Report)]
    return ProgramReport(
        schema_version=PROGRAM_SCHEMA_VERSION,
        tool_version=__version__,
        command=program.command,
        machine=machine or (reports[0].machine if reports else None),
        ending=ended.ending,
        exit_code=ended.exit_code,
        wall_s=wall_s,
        diagnosis_s=watch.diagnosis_s,
        steps=tuple(_step(step, watch.after, wall_s, ended.ending) for step in watch.steps),
        loading_s=watch.loading_s,
        notes=tuple(_notes(watch)),
        is_on_cpu=machine is None,
    )


def _too_few(step: SeenStep, after: int) -> str:
    """How many runs a diagnosis needs, and what helps."""
    is_found = isinstance(step, LoopStep) and step.is_learned
    to_find = STEPS_TO_LEARN + 1 if is_found else 0
    needed = max(after, to_find) + FEWEST_STEPS
    text = f"The step ran {count_text(step.begun, 'time')}, and a diagnosis needs {needed} runs."
    if step.modules and not step.is_on_gpu:
        text += f" {ON_CPU} First, {to_gpu(step.modules.values())}."
    sooner = (
        f", or pass `--after 0`, which needs {to_find + FEWEST_STEPS}" if after > to_find else ""
    )
    return f"{text} Run more steps{sooner}."


def _step(step: SeenStep, after: int, wall_s: float, ending: Ending) -> ProgramStep:
    """What was seen of one step."""
    report: Report | None = None
    reason = step.reason
    match step.outcome:
        case Report():
            report = step.outcome
        case NotReached(late):
            reason = reason or late
        case str(why):
            reason = reason or why
    is_reached = bool(step.reason) or isinstance(step.outcome, Report | str)
    if report is None and not reason:
        is_cut = ending == "interrupted"
        seen = f"It was seen {count_text(step.begun, 'time')}"
        cut = f"{seen}, and the program was interrupted before its diagnosis."
        reason = cut if is_cut else _too_few(step, after)
    return ProgramStep(
        name=step.name,
        location=step.location,
        last_line=step.last_line,
        mode=step.mode,
        begun=step.begun,
        wall_s=step.wall_s,
        share=min(1.0, step.wall_s / wall_s) if wall_s > 0 else 0.0,
        passes=step.passes_per_step if isinstance(step, LoopStep) else 1,
        report=report,
        reason=reason,
        is_reached=is_reached,
        between=tuple(_waits(step)),
        recorded=len(step.recorded_s),
        slowdown=step.slowdown,
        modules=tuple(step.modules.values()),
        caller=step.caller,
        host_values=tuple(sorted(step.host_values)),
    )


def _waits(step: SeenStep) -> Iterator[HostWait]:
    """Without those on the step's own lines, which go on behind the optimizer: its findings have them."""
    own = range(step.location.line, step.last_line + 1)
    for (location, operation), count in step.waits.most_common():
        if location is None or location.file != step.location.file or location.line not in own:
            yield HostWait(location, operation, count / step.gaps)


def _notes(watch: Watch) -> Iterator[str]:
    yield from watch.reasons
    for left, usual in watch.short_batches:
        yield (
            f"The last batch of a DataLoader has {left} of {usual} samples, and the static inputs of a graph have"
            " one shape. Pass `drop_last=True`, or run the last batch eagerly, as `graphdoctor.capture` does."
        )
    by_hand = watch.updates_by_hand
    for line, count in by_hand:
        yield (
            f"The backward pass of {file_line(line)} ran {count} times, and no optimizer stepped after it. A step"
            " that updates its weights by hand is not found: mark it with `with graphdoctor.step():`."
        )
    if by_hand:
        return
    if not watch.steps and not watch.reasons:
        only = watch.only
        yield (
            f"No function or method {only} of the program was called (--step)."
            if only
            else NO_STEPS
        )
