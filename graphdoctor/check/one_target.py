"""The process of one target of a check: it writes a report or a fault."""

from __future__ import annotations

import dataclasses
import os
import random
import sys

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from graphdoctor.check.cache.reads import ReadsObserver
from graphdoctor.check.run_targets import Job, Place, Result, fault_of
from graphdoctor.device.processes.launched import take_own_gpu
from graphdoctor.device.processes.process import Failed
from graphdoctor.pipeline import analyze_target
from graphdoctor.reporters.plain_json import written
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError

SEED = 0


def do(job: bytes) -> bytes:
    """Analyse the target of a job; the model reaches nothing but this process.

    Raises `Failed` as one of several ranks: without it the others cannot go on.
    """
    asked = msgspec.json.decode(job, type=Job)
    if asked.ranks > 1 and asked.place is None:
        from graphdoctor.check.on_ranks import result_of_ranks

        try:
            result = result_of_ranks(asked, time_limit_s=asked.time_limit_s)
        except GraphDoctorError as error:
            result = Result(fault=fault_of(error))
    else:
        result = _result(asked)
    done = msgspec.json.encode(result)
    if asked.place is not None and result.fault is not None:
        raise Failed(done)
    return done


def _result(job: Job) -> Result:
    observer = ReadsObserver() if job.is_followed else None
    if observer is not None:
        observer.start()
    os.chdir(job.root)
    sys.path.append(job.root)
    # The same commit must give the same report: one thread, and equal weights and inputs.
    seed = SEED + (job.place.rank if job.place is not None else 0)  # each rank has its data
    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        if job.place is not None:
            job = _as_rank(job, job.place)
        report = replace(analyze_target(job.spec, job.options, lambda doing: None), lanes=None)
        reads = observer.reads() if observer is not None else None
        return Result(report_json=written(report), reads=reads)
    except BaseException as error:
        return Result(fault=fault_of(error))


def _as_rank(job: Job, place: Place) -> Job:
    """On the GPU of its number; on an emulated one where there are too few for "auto"."""
    from graphdoctor.check.on_ranks import variables

    os.environ.update(variables(place))
    if job.options.device == "emulated":
        return job
    found = torch.cuda.device_count()
    if found >= place.count:
        take_own_gpu()
        return job
    if job.options.device == "cuda":
        raise CannotDoItHere(
            f"--ranks {place.count} with --device cuda needs as many GPUs, and torch finds {found} here: use"
            " --device emulated, which needs none."
        )
    return replace(job, options=dataclasses.replace(job.options, device="emulated"))
