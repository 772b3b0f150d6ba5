"""Runs a program as Python would, and reports on each step that it repeats and on the whole."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import msgspec
import torch

from graphdoctor import __version__
from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.device.open import AnyDevice
from graphdoctor.device.processes.launched import rank_and_count
from graphdoctor.device.processes.overdue import ended_after
from graphdoctor.diagnose.assemble import could_not_run, machine_info, raises_in_capture
from graphdoctor.operators import COPIES
from graphdoctor.pipeline.setting import Progress, Setting, open_setting
from graphdoctor.pipeline.stages import report_of, study
from graphdoctor.record.place import place
from graphdoctor.source.to_gpu import lines_on_gpu
from graphdoctor.strategies.choice import check_names
from graphdoctor.target import Target, named_tensors
from graphdoctor.target.frames import locate
from graphdoctor.target.program.launch import Ended, Program, run_program
from graphdoctor.target.program.loop_step import LoopStep
from graphdoctor.target.program.loops import STEPS_TO_LEARN
from graphdoctor.target.program.quiet import quiet, without_side_effects
from graphdoctor.target.program.step import SeenStep
from graphdoctor.target.program.studies import FEWEST_STEPS, Waits
from graphdoctor.target.program.watch import Watch
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.values.errors import GraphDoctorError, RaisesInCapture
from graphdoctor.values.figures import count_text, joined
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import file_line
from graphdoctor.values.options import RunOptions
from graphdoctor.values.program import (
    ON_CPU,
    PROGRAM_SCHEMA_VERSION,
    Ending,
    HostWait,
    NotReached,
    ProgramReport,
    ProgramStep,
    modules_to_move,
)
from graphdoctor.values.recording import Unreached
from graphdoctor.values.report import Machine, Report

_LESS: dict[Unreached, str] = {
    "steps": "comparisons of further steps",
    "later steps": "trials of later steps",
    "regions": "replays of its regions",
}
_RAISES_ON_GPU = (
    "With its model and inputs on a GPU, {error}. Change this line to run the step on a GPU, then run the same"
    " command again."
)


def diagnose_program(
    program: Program, options: RunOptions, progress: Progress
) -> tuple[ProgramReport, str]:
    """Run a program as Python would and diagnose the steps that it repeats, where they stand.

    Also what Python would have written to stderr at its end. The program goes on after each
    diagnosis as if there had been none. All diagnoses together have the budget of `options.analyze`: once
    it is used, no strategy and no further step is begun. Raises UsageError where there is no such program.
    """
    budget_s = options.analyze.budget_s
    diagnosed, skipped = 0, 0
    check_names(options.analyze.strategies)
    # A program that is left on the CPU has none: each step then gets a device for its diagnosis.
    opening: AbstractContextManager[Setting | None] = (
        nullcontext() if options.is_left_on_cpu else open_setting(options.analyze, progress)
    )
    with opening as setting:

        def diagnose_step(target: Target) -> Report | str | NotReached:
            nonlocal diagnosed, skipped
            left_s = budget_s - watch.diagnosis_s
            has_others = rank_and_count()[1] > 1  # ranks diagnose the same steps
            if left_s <= 0 and diagnosed and not has_others:
                skipped += 1
                return NotReached(
                    f"The diagnosis of earlier steps used the budget of {budget_s:g} s."
                )
            diagnosed += 1
            doing = f"step {diagnosed}, {target.name}"
            deadline_s = time.monotonic() + left_s

            def tell(stage: str) -> None:
                progress(f"{doing}: {stage}")

            try:
                with ended_after(options.time_limit_s), quiet():
                    return _of_step(target, options, setting, tell, deadline_s)
            finally:
                progress("")

        def observe(waits: Waits) -> AbstractContextManager[None]:
            if setting is None:
                return nullcontext()
            return setting.device.observed_by(BetweenSteps(setting.device.table, waits))

        watch = Watch(diagnose_step, options.bounds, observe)
        with watch.on():
            ended = run_program(program, lambda: watch.has_ended)
        now = time.perf_counter()
        wall_s = now - (watch.first_s or now) - watch.diagnosis_s
        if ended.ending != "interrupted":  # who pressed Ctrl-C does not wait for a diagnosis
            watch.finish()
        machine = machine_info(setting.device) if setting is not None else None
        report = program_report(program, ended, watch, wall_s=wall_s, machine=machine)
        return _with_budget_note(report, budget_s, skipped), ended.text


def _with_budget_note(report: ProgramReport, budget_s: float, skipped: int) -> ProgramReport:
    """With a note of what the budget did not reach, if there is such a thing."""
    untried = sum(
        step.report is not None and any(row.status == "timed-out" for row in step.report.strategies)
        for step in report.steps
    )
    missing = [f"the diagnosis of {count_text(skipped, 'step')}"] if skipped else []
    if untried:
        missing.append(f"strategies that could speed up {count_text(untried, 'step')}")
    for number, step in enumerate(report.steps, start=1):
        if step.report is not None and step.report.unreached:
            less = joined([_LESS[one] for one in step.report.unreached])
            missing.append(f"of step {number}, {less}")
    if not missing or report.ending == "interrupted":
        return report
    minutes = -(-2 * max(budget_s, report.diagnosis_s) // 60)
    note = (
        f"The diagnosis took {report.diagnosis_s:.0f} s. Its budget of {budget_s:g} s left out {'; '.join(missing)}."
        f" `--budget {minutes:.0f}m` includes them."
    )
    return msgspec.structs.replace(report, notes=(*report.notes, note))


def _of_step(
    target: Target,
    options: RunOptions,
    setting: Setting | None,
    progress: Progress,
    deadline_s: float,
) -> Report | str:
    """The report, or why there is none."""
    if setting is None:
        emulated = replace(options.analyze, device="emulated")
        with open_setting(emulated, progress) as own:
            return _of_step(target, options, own, progress, deadline_s)
    setting = replace(_apart(setting, target), progress=progress, deadline_s=deadline_s, begun=[])
    step = target.step

    def harmless(*args: object, **kwargs: object) -> object:
        with without_side_effects():
            return step(*args, **kwargs)

    try:
        if not options.is_left_on_cpu and not _is_on(setting.device, target):
            return ON_CPU
        placed = place(replace(target, step=harmless), setting.device)
        return report_of(study(placed, setting), None, setting)
    except EmulationLimit as limit:
        return could_not_run(target, setting.device, str(limit))
    except RaisesInCapture as error:
        return raises_in_capture(target, setting.device, error)
    except GraphDoctorError as error:
        return _RAISES_ON_GPU.format(error=error) if options.is_left_on_cpu else str(error)


def _apart(setting: Setting, target: Target) -> Setting:
    """With a folder for the traces of this step alone."""
    if setting.options.trace_dir is None:
        return setting
    folder = os.path.join(setting.options.trace_dir, re.sub(r"[^\w.-]+", "_", target.name))
    return replace(setting, options=replace(setting.options, trace_dir=folder))


def _is_on(device: AnyDevice, target: Target) -> bool:
    first = target.fresh_inputs()
    tensors = [*named_tensors(target.roots).values(), *input_leaves(first).values()]
    return any(isinstance(t, torch.Tensor) and device.table.is_cuda(t) for t in tensors)


_READS = frozenset({"_local_scalar_dense", "equal", "nonzero"})


class BetweenSteps(Observer):
    """Counts reads of values, copies to the host and synchronization. An observer of a device.

    It looks at the names of operators and where their tensors lie only, so it costs little.
    """

    def __init__(self, table: StorageTable, waits: Waits) -> None:
        self._table = table
        self._waits = waits

    def after(self, call: Call) -> None:
        """Note what the host had to wait for."""
        name = call.facts.base_name
        if name in _READS and any(map(self._table.is_cuda, call.inputs)):
            self._note("reads a value of the device")
        elif name in COPIES and self._is_to_host(name, call):
            self._note("copies to the host")

    def event(self, event: HostEvent) -> None:
        """`torch.cuda.synchronize()` and other calls that wait."""
        if event.host_waits:
            self._note(event.name)

    def _note(self, what: str) -> None:
        self._waits[locate(3).location, what] += 1

    def _is_to_host(self, name: str, call: Call) -> bool:
        into, *others = [self._table.is_cuda(tensor) for tensor in call.inputs] or [False]
        if name == "copy_":
            return not into and any(others)
        return into and not call.on_cuda


NO_STEPS = (
    "No step was seen that repeats: neither training steps, which end with optimizer.step(), nor two"
    " calls of a module from one line."
)


def program_report(
    program: Program, ended: Ended, watch: Watch, *, wall_s: float, machine: Machine | None
) -> ProgramReport:
    """What was seen until the program ended, however it ended."""
    reports = [step.outcome for step in watch.steps if isinstance(step.outcome, Report)]
    steps = tuple(_step(step, watch.after, wall_s, ended.ending) for step in watch.steps)
    stays = [step for step in steps if step.stays_on_cpu or machine is None]
    files = (step.location.file for step in stays)
    modules = modules_to_move((step.mode, step.modules) for step in stays)
    return ProgramReport(
        schema_version=PROGRAM_SCHEMA_VERSION,
        tool_version=__version__,
        command=program.command,
        machine=machine or (reports[0].machine if reports else None),
        ending=ended.ending,
        exit_code=ended.exit_code,
        wall_s=wall_s,
        diagnosis_s=watch.diagnosis_s,
        steps=steps,
        loading_s=watch.loading_s,
        notes=tuple(_notes(watch)),
        is_on_cpu=machine is None,
        on_gpu=tuple(lines_on_gpu(files, modules)) if stays else (),
    )


def _too_few(step: SeenStep, after: int) -> str:
    """How many runs a diagnosis needs, and what helps."""
    is_found = isinstance(step, LoopStep) and step.is_learned
    to_find = STEPS_TO_LEARN + 1 if is_found else 0
    needed = max(after, to_find) + FEWEST_STEPS
    text = f"The step ran {count_text(step.begun, 'time')}, and a diagnosis needs {needed} runs."
    if step.modules and not step.is_on_gpu:
        text += f" {ON_CPU}"
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
            " one shape. `graphdoctor.capture` runs that batch eagerly. If you capture by hand, pass `drop_last=True`."
        )
    alone = watch.lone_backwards
    for line, times, inside in alone:
        yield (
            f"One call of `{inside}.step()` ran the backward pass of {file_line(line)} {times} times. To diagnose"
            " these passes, mark the body of the closure with `with graphdoctor.step():`."
            if inside
            else f"The backward pass of {file_line(line)} ran {times} times, and no optimizer stepped after it. A step"
            " that updates its weights by hand is not found: mark it with `with graphdoctor.step():`."
        )
    if alone:
        return
    if not watch.steps and not watch.reasons:
        only = watch.only
        yield (
            f"No function or method {only} of the program was called (--step)."
            if only
            else NO_STEPS
        )
