"""Tries a strategy in a process of its own: a crash, a hang or a spoilt device costs its row only."""

from __future__ import annotations

import dataclasses
import pickle
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.device.processes.process import Ended, FreshProcesses, fresh_processes
from graphdoctor.estimate import Observed
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.record import prepare
from graphdoctor.record.place import place
from graphdoctor.record.variation import with_fixed_inputs
from graphdoctor.strategies.strategy import Known, Strategy
from graphdoctor.strategies.trial import Terms, carry_out, not_come_about
from graphdoctor.target import resolve
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.locations import Location
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.speed import StrategyOutcome


@dataclass(frozen=True, slots=True)
class Job:
    """One strategy on one target, which the process finds again by its `spec`.

    `row` is what was foreseen. `known` goes without the roots, which the process finds again, and without
    `ran`. The process has `time_limit_s` from its start signal on.
    """

    spec: str
    options: AnalyzeOptions
    profile: DeviceProfile
    strategy: Strategy
    row: StrategyOutcome
    known: Known
    measure_s: float
    time_limit_s: float
    kept_inputs: tuple[str, ...] = ()
    observed: Observed | None = None


def own_processes() -> AbstractContextManager[FreshProcesses]:
    """Processes for one strategy each; compilers start cold in them, as in a first use."""
    return fresh_processes(__name__, has_cold_caches=True)


def in_own_process(processes: FreshProcesses, job: Job, *, is_last: bool) -> StrategyOutcome:
    """Try it there, and have ended the process, before this returns; never raises for what happens there."""
    # Pickled: a recorded argument may hold itself, which msgspec cannot describe.
    ended = processes.run(pickle.dumps(job), time_limit_s=job.time_limit_s, is_last=is_last)
    if ended.result is not None:
        return msgspec.msgpack.decode(ended.result, type=StrategyOutcome)
    failed = replace(job.row, status="failed", code="", location=_last_own_line(ended))
    if ended.code is None:
        return replace(failed, status="timed-out", reason=ended.reason)
    last_words = ended.last_words if ended.code >= 0 else ""
    return replace(failed, reason=": ".join(filter(None, (ended.reason, last_words))))


def do(job: bytes) -> bytes:
    """In the process: a job from the private folder that the parent made -> its row."""
    return msgspec.msgpack.encode(_row(pickle.loads(job)))


def _row(job: Job) -> StrategyOutcome:
    try:
        with open_device(job.options.device, job.profile) as device:
            return _tried(job, device)
    except BaseException as error:
        return replace(not_come_about(job.row, error), status="failed", code="")


def _tried(job: Job, device: AnyDevice) -> StrategyOutcome:
    options = job.options
    target = place(resolve(job.spec, mode=options.mode, inputs=options.inputs), device)
    if options.fixed_inputs:
        target = with_fixed_inputs(target)
    if target.variation is not None:
        target.variation.keep(job.kept_inputs)
    session = prepare(target, device, iterations=options.iterations)
    known = dataclasses.replace(job.known, roots=target.roots)
    terms = Terms(job.profile, measure_s=job.measure_s, observed=job.observed)
    return carry_out(job.row, job.strategy, session, known, terms=terms)


def _last_own_line(ended: Ended) -> Location | None:
    """The innermost line of the user's in what the process could still say of its main thread."""
    for frame in ended.frames():
        if not is_machinery(frame["file"]):
            return Location(frame["file"], int(frame["line"]), frame["function"])
    return None
