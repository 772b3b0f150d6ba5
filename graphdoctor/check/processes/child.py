"""A job, in a process of its own -> its result file; the model reaches nothing else."""

from __future__ import annotations

import faulthandler
import os
import random
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch

from graphdoctor.check.faults import fault_of
from graphdoctor.check.processes.job import Job, Plan, Result, write_result
from graphdoctor.pipeline import analyze_target
from graphdoctor.reporters.analysis import REPORTERS
from graphdoctor.reporters.look import Look
from graphdoctor.values.options import AnalyzeOptions

SEED = 0


def main() -> None:
    """Do one job of a plan, in a process that was started for it."""
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    live(plan, plan.jobs[int(sys.argv[2])])


def live(plan: Plan, job: Job) -> None:
    """Analyse the job's target and leave the process, without waiting for threads of the model."""
    os.setsid()  # so that the model's own processes end with it
    output = _redirect(plan, job)
    faulthandler.enable(output)
    faulthandler.dump_traceback_later(plan.time_limit_s, file=output)
    os.chdir(plan.root)
    sys.path.append(plan.root)
    _make_repeatable()
    result = _result(plan, job)
    faulthandler.cancel_dump_traceback_later()
    write_result(plan.result_path(job), result)
    os._exit(0)


def _redirect(plan: Plan, job: Job) -> int:
    """Send what the model prints to a file: stdout is for the report."""
    output = os.open(plan.output_path(job), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(number, stream)
    return output


def _make_repeatable() -> None:
    """The same commit must give the same report: one thread, and equal weights and inputs."""
    torch.set_num_threads(1)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _result(plan: Plan, job: Job) -> Result:
    options = AnalyzeOptions(
        mode=job.mode,
        device=plan.device,
        iterations=plan.iterations,
        inputs=job.inputs,
        gpu=plan.gpu,
        strategies=(),  # a check is about structure
    )
    try:
        report = analyze_target(job.spec, options, lambda doing: None)
        return Result(report_json=REPORTERS["json"](report, Look()))
    except BaseException as error:
        return Result(fault=fault_of(error))


if __name__ == "__main__":
    main()
