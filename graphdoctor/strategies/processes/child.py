"""`python -m graphdoctor.strategies.processes.child FOLDER`: one strategy, tried alone -> its row in the folder."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from graphdoctor.device.open import AnyDevice, open_device
from graphdoctor.estimate.gpus import DeviceProfile, load_profile
from graphdoctor.graphs.cause import in_words, location_of, true_cause
from graphdoctor.record import prepare
from graphdoctor.record.place import place
from graphdoctor.record.variation import with_fixed_inputs
from graphdoctor.strategies.processes.job import Job, write_row
from graphdoctor.strategies.processes.start_signal import BEFORE_THE_END_S, wait_at_gate
from graphdoctor.strategies.strategy import Known
from graphdoctor.strategies.trial import Terms, carry_out
from graphdoctor.target import resolve
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.report import StrategyOutcome

_SOONEST_S = 0.1


def main() -> None:
    """Wait at the gate, try it and leave, without waiting for threads of the model or of a compiler.

    Before the gate opens, another process works: all is imported by then, and no GPU touched.
    """
    folder = Path(sys.argv[1])
    faulthandler.enable()
    begun_s = wait_at_gate()
    if begun_s is None:
        os._exit(0)
    job = Job.read(folder)
    # Shortly before the parent ends it: where it hangs is the most that is known of a hang.
    left_s = job.time_limit_s - (time.time() - begun_s)
    faulthandler.dump_traceback_later(max(_SOONEST_S, left_s - BEFORE_THE_END_S))
    row = _row(job)
    faulthandler.cancel_dump_traceback_later()
    write_row(folder, row)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _row(job: Job) -> StrategyOutcome:
    profile = load_profile(job.gpu)
    try:
        with open_device(job.device, profile) as device:
            return _tried(job, device, profile)
    except BaseException as error:
        cause = true_cause(error)
        reason = str(cause) if isinstance(cause, GraphDoctorError) else in_words(cause)
        return replace(
            job.row, status="failed", reason=reason, location=location_of(cause), code=""
        )


def _tried(job: Job, device: AnyDevice, profile: DeviceProfile) -> StrategyOutcome:
    target = place(resolve(job.spec, mode=job.mode, inputs=job.inputs), device)
    if job.fixed_inputs:
        target = with_fixed_inputs(target)
    session = prepare(target, device, iterations=job.iterations)
    known = Known(
        mode=target.mode,
        roots=target.roots,
        findings=job.findings,
        safe_modules=job.safe_modules,
        iteration=job.iteration,
    )
    terms = Terms(profile, measure_s=job.measure_s)
    return carry_out(job.row, job.strategy, session, known, terms=terms)


if __name__ == "__main__":
    main()
