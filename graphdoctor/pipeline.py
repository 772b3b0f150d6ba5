"""The whole pipeline: target -> recording -> diagnosis -> plan -> graphs, verified -> times -> report."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_in

import torch
from msgspec.structs import replace

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.device.observe.collectives import runs_with_others
from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.diagnose.assemble import Results, assemble, could_not_run, machine_info
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.diagnose.of_program import program_report
from graphdoctor.estimate import launches, with_costs
from graphdoctor.estimate.gpus import DeviceProfile, load_profile
from graphdoctor.measure.profile import ready_for_graphs
from graphdoctor.measure.speed import time_step
from graphdoctor.partition import partition
from graphdoctor.proof.eager_runs import EagerRuns
from graphdoctor.proof.stage import capture_and_verify
from graphdoctor.record import Session, prepare, record
from graphdoctor.record.between import BetweenSteps, Waits
from graphdoctor.record.memory import lacks_memory
from graphdoctor.record.place import place
from graphdoctor.record.session import on_meta
from graphdoctor.record.variation import narrowed, with_fixed_inputs
from graphdoctor.record.without_values import NO_VALUES, without_values
from graphdoctor.strategies.choice import check_names
from graphdoctor.strategies.evidence import Evidence, Studied
from graphdoctor.strategies.side_by_side import compare_strategies
from graphdoctor.target import Snapshot, Target, from_object, named_tensors, resolve, snapshot
from graphdoctor.target.program.launch import Program, run_program
from graphdoctor.target.program.quiet import quiet, without_side_effects
from graphdoctor.target.program.watch import Watch
from graphdoctor.target.state.snapshot import Held, always
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.values.errors import GraphDoctorError, UsageError, UserCodeError
from graphdoctor.values.options import AnalyzeOptions, DeviceChoice, RunOptions, ValuesChoice
from graphdoctor.values.program import ProgramReport
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Mode, Report

Progress = Callable[[str], None]
_DEFAULTS = AnalyzeOptions()
NEVER_ON_GPU = (
    "The step runs on the CPU: put the model and its inputs on the GPU, or let `--device cpu-as-is`"
    " say what a GPU would make of it."
)
_NO_STRATEGIES = "Strategies are not compared: the step belongs to a process group, and each needs ranks of its own."


def silent(doing: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a step is studied, and where progress is reported."""

    device: AnyDevice
    options: AnalyzeOptions = _DEFAULTS
    progress: Progress = silent

    @property
    def profile(self) -> DeviceProfile:
        """The profile of the GPU that predictions are for."""
        return load_profile(self.options.gpu)


def analyze(
    subject: object,
    *inputs: object,
    mode: Mode | None = None,
    device: DeviceChoice = "auto",
    iterations: int = 4,
    gpu: str = "h100",
    strategies: Sequence[str] | None = None,
    budget_s: float = 120.0,
    vary_inputs: bool = True,
    values: ValuesChoice = "auto",
    **kwargs: object,
) -> Report:
    """Diagnose a module on its inputs, or what a function returns as `graphdoctor_target()` would.

    `strategies` are compared within `budget_s` seconds: () for none, None for those that fit; on a
    real GPU only the whole step as one graph, since the others need a target in a file.
    Without `vary_inputs` every iteration gets the inputs as given; else other values of the same make,
    where the step accepts them. `values` "none" runs the step on shapes only, which takes neither
    memory nor time to compute, and proves less; "auto" does so for weights on the meta device, and where
    the memory would not suffice. Everything that the analysis touches is afterwards as it was before. Raises
    `graphdoctor.values.errors.UserCodeError` where the step itself fails.
    """
    options = AnalyzeOptions(
        mode=mode,
        device=device,
        iterations=iterations,
        gpu=gpu,
        strategies=tuple(strategies) if strategies is not None else None,
        budget_s=budget_s,
        fixed_inputs=not vary_inputs,
        values=values,
    )
    return _analyze(
        lambda: from_object(subject, *inputs, mode=mode, **kwargs), None, options, silent
    )


def analyze_target(spec: str, options: AnalyzeOptions, progress: Progress) -> Report:
    """Diagnose what `file.py`, `file.py:name` or `package.module:name` describes."""
    return _analyze(
        lambda: resolve(spec, mode=options.mode, inputs=options.inputs), spec, options, progress
    )


def _analyze(
    find: Callable[[], Target], spec: str | None, options: AnalyzeOptions, progress: Progress
) -> Report:
    """`spec` finds the target again in another process; None: nothing does."""
    check_names(options.strategies)
    options = _of_device_that_can(options)
    with open_setting(options, progress) as setting:
        progress("finding the model")
        target = find()
        why = _why_without_values(target, setting)
        if not why or setting.device.kind == "emulated":
            return _analyze_found(target, why, spec, setting)
        target.close()
    return _analyze(find, spec, replace_in(options, device="auto", values="none"), progress)


def _of_device_that_can(options: AnalyzeOptions) -> AnalyzeOptions:
    """Without values no GPU is of use: the emulated device runs the step."""
    if options.values != "none":
        return options
    if options.device == "cuda":
        raise UsageError(
            "A step on shapes only (values none) runs nothing on a GPU: leave --device cuda out, or"
            " --values none."
        )
    return replace_in(options, device="emulated")


def _analyze_found(target: Target, why: str, spec: str | None, setting: Setting) -> Report:
    """`why` the step is to run without values; "" runs it with them."""
    device = setting.device
    if why:  # nothing can be verified or profiled
        options = replace_in(setting.options, strategies=(), trace_dir=None)
        setting = replace_in(setting, options=options)
    try:
        with (
            _values_left_out(target, why, device) as given,
            put_back(given, device.table.holds_values),
        ):
            placed = place(given, device)
            try:
                return _report(study(placed, setting), spec, setting)
            except EmulationLimit as limit:
                return could_not_run(placed, device, str(limit))
    except EmulationLimit as limit:
        target.close()
        return could_not_run(target, device, str(limit))


def _why_without_values(target: Target, setting: Setting) -> str:
    """Why the step has to run on shapes only, as a clause; "" where it can run with values."""
    wanted = setting.options.values
    if wanted != "auto":
        return "as was asked for" if wanted == "none" else ""
    if empty := on_meta(target):
        return f"{empty}, which holds no values"
    return lacks_memory(target) if setting.device.kind == "emulated" else ""


@contextmanager
def _values_left_out(target: Target, why: str, device: AnyDevice) -> Iterator[Target]:
    if not why or not isinstance(device, EmulatedDevice):
        yield target
        return
    note = f"{NO_VALUES}: {why}"
    with without_values(replace_in(target, notes=(*target.notes, note)), device) as given:
        yield given


def diagnose_program(
    program: Program, options: RunOptions, progress: Progress
) -> tuple[ProgramReport, str]:
    """Run a program as Python would and diagnose the steps that it repeats, where they stand.

    Also what Python would have written to stderr at its end. The program goes on after each
    diagnosis as if there had been none. Raises UsageError where there is no such program.
    """
    check_names(options.analyze.strategies)
    with _setting_of_program(options, progress) as setting:

        def diagnose_step(target: Target) -> Report | str:
            with quiet():
                return _of_step(target, options, setting, progress)

        def observe(waits: Waits) -> AbstractContextManager[None]:
            if setting is None:
                return nullcontext()
            return setting.device.observed_by(BetweenSteps(setting.device.table, waits))

        watch = Watch(diagnose_step, options.bounds, observe)
        with watch.on():
            ended = run_program(program, lambda: watch.has_ended)
        now = time.perf_counter()
        wall_s = now - (watch.first_s or now) - watch.diagnosis_s
        watch.finish()
        machine = machine_info(setting.device) if setting is not None else None
        return program_report(program, ended, watch, wall_s=wall_s, machine=machine), ended.text


@contextmanager
def _setting_of_program(options: RunOptions, progress: Progress) -> Iterator[Setting | None]:
    """None where the program is left on the CPU: each step then gets a device for its diagnosis."""
    if options.is_left_on_cpu:
        yield None
        return
    with open_setting(options.analyze, progress) as setting:
        yield setting


def _of_step(
    target: Target, options: RunOptions, setting: Setting | None, progress: Progress
) -> Report | str:
    """The report, or why there is none."""
    if setting is None:
        emulated = replace_in(options.analyze, device="emulated")
        with open_setting(emulated, progress) as own:
            return _of_step(target, options, own, progress)
    setting = _apart(setting, target)
    step = target.step

    def harmless(*args: object, **kwargs: object) -> object:
        with without_side_effects():
            return step(*args, **kwargs)

    try:
        if not options.is_left_on_cpu and not _is_on(setting.device, target):
            return NEVER_ON_GPU
        placed = place(replace_in(target, step=harmless), setting.device)
        return _report(study(placed, setting), None, setting)
    except EmulationLimit as limit:
        return could_not_run(target, setting.device, str(limit))
    except GraphDoctorError as error:
        return str(error)


def _apart(setting: Setting, target: Target) -> Setting:
    """With a folder for the traces of this step alone."""
    if setting.options.trace_dir is None:
        return setting
    folder = os.path.join(setting.options.trace_dir, re.sub(r"[^\w.-]+", "_", target.name))
    return replace_in(setting, options=replace_in(setting.options, trace_dir=folder))


def _is_on(device: AnyDevice, target: Target) -> bool:
    first = target.fresh_inputs()
    tensors = [*named_tensors(target.roots).values(), *input_leaves(first).values()]
    return any(isinstance(t, torch.Tensor) and device.table.is_cuda(t) for t in tensors)


def study(target: Target, setting: Setting) -> Studied:
    """Record the step, diagnose it, and cut it into regions; nothing is captured yet."""
    if setting.options.fixed_inputs:
        target = with_fixed_inputs(target)
    session, ran, recording = _recorded(target, setting)
    setting.progress("diagnosing")
    diagnosis = diagnose(recording)
    plan = partition(recording, diagnosis, profile=setting.profile)
    return Studied(session, recording, diagnosis, plan, ran)


def _recorded(target: Target, setting: Setting) -> tuple[Session, EagerRuns | None, Recording]:
    """Inputs whose other values turn out not to go together after all are kept as given."""
    setting.progress("warming up")
    try:
        session = prepare(target, setting.device, iterations=setting.options.iterations)
        is_exact = setting.device.kind == "emulated" and setting.device.has_values
        ran = EagerRuns(session) if is_exact else None
        look = ran.look if ran is not None else None
        return session, ran, record(session, progress=setting.progress, look=look)
    except UserCodeError as error:
        fewer = narrowed(target, error)
        if fewer is None:
            raise
        return _recorded(fewer, setting)


@contextmanager
def proven(studied: Studied, setting: Setting) -> Iterator[tuple[Report, Evidence]]:
    """Capture, verify and time what was studied; inside the block its graph can be replayed.

    The findings get what they cost a step.
    """
    session, recording, plan = studied.session, studied.recording, studied.plan
    _check_not_empty(recording)
    costed = with_costs(studied.diagnosis.findings, recording, setting.profile)
    diagnosis = replace(studied.diagnosis, findings=costed)
    setting.progress("capturing and verifying")
    captured = capture_and_verify(session, recording, diagnosis, plan, ran=studied.ran)
    kept = tuple(found for found in diagnosis.findings if found not in captured.refuted)
    diagnosis = replace(diagnosis, findings=kept)
    try:
        setting.progress("estimating the speed-up")
        speed = time_step(session, recording, captured, plan, setting.options, setting.profile)
        results = Results(
            findings=diagnosis.findings,
            regions=tuple(planned.region for planned in plan.regions),
            safe_modules=plan.safe_modules,
            captures=captured.outcomes,
            estimate=speed.estimate,
            measurement=speed.measurement,
            limits=(*captured.limits, *speed.limits),
        )
        evidence = Evidence(session, recording, diagnosis, plan, studied.ran, captured, speed)
        yield assemble(session, recording, results), evidence
    finally:
        captured.release()


def _report(studied: Studied, spec: str | None, setting: Setting) -> Report:
    options = setting.options
    if setting.device.kind == "cuda" and (
        options.trace_dir is not None or options.strategies != ()
    ):
        ready_for_graphs()
    with proven(studied, setting) as (report, evidence):
        if options.trace_dir is not None:
            from graphdoctor.reporters.tensorboard import with_traces  # brings rich and tensorboard

            report = with_traces(report, evidence)
        if options.strategies == ():
            return report
        if runs_with_others():
            return replace(report, limits=(*report.limits, _NO_STRATEGIES))
        return compare_strategies(
            report,
            evidence,
            options=options,
            profile=setting.profile,
            spec=spec,
            progress=setting.progress,
        )


def _check_not_empty(recording: Recording) -> None:
    if not any(op.is_cuda for iteration in recording.captured for op in iteration.ops):
        raise UsageError(
            "The step ran no operator on the CUDA device, so there is nothing to capture: "
            "put the model and its inputs on the device, and let the step call it."
        )
    if not any(launches(op) for iteration in recording.captured for op in iteration.ops):
        raise UsageError(
            "The step launches nothing on the CUDA device: it only makes views and allocations, so "
            "there is nothing to capture."
        )


@contextmanager
def open_setting(options: AnalyzeOptions, progress: Progress) -> Iterator[Setting]:
    """Inside the block, code that says "cuda" runs on the device of the options."""
    profile = load_profile(options.gpu)  # raises for an unknown name before anything runs
    with generators_kept(), open_device(options.device, profile) as device:
        yield Setting(device, options, progress)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore random generators and torch's global settings, whatever the user's code did to them."""
    before = snapshot({})
    try:
        yield
    finally:
        before.restore()


@contextmanager
def put_back(target: Target, held: Held = always) -> Iterator[Snapshot]:
    """Inside the block the target may run; afterwards its state is restored and it is closed.

    Memory that is not `held` has no values to restore.
    """
    try:
        before = snapshot(target.roots, held=held)
        try:
            yield before
        finally:
            before.restore()
    finally:
        target.close()
