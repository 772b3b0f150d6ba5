"""Run a job on several ranks: one process each on this machine, connected as under torchrun."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.run_targets import WORK, Job, Place, Result, fault_of_process
from graphdoctor.device.processes.forked import run_forked
from graphdoctor.device.processes.launched import STARTED_HERE
from graphdoctor.device.processes.overdue import Stand, did_not_end
from graphdoctor.device.processes.process import Ended
from graphdoctor.diagnose.all_ranks import merged
from graphdoctor.reporters.plain_json import parsed, written
from graphdoctor.values.check import Fault
from graphdoctor.values.errors import CannotDoItHere, UsageError, UserCodeError
from graphdoctor.values.report import Report

_HERE = "127.0.0.1"
_LOOPBACKS = ("lo", "lo0")
# What a rank says of another one that ended or never came. Source: Gloo's and TCPStore's errors.
_OF_OTHERS = re.compile(
    r"timed? ?out|connection (closed|reset|refused)|broken pipe|failed on rank \d|\brank \d+ failed",
    re.IGNORECASE,
)


def result_of_ranks(job: Job, *, time_limit_s: float) -> Result:
    """Analyze on `job.ranks` ranks at once: what all of them found, or which one failed and why.

    Nobody waits longer than `time_limit_s`, nor for a rank that has failed. Raises CannotDoItHere where
    processes cannot be forked.
    """
    found = _of_ranks(job, time_limit_s=time_limit_s, begun_s=None)
    return Result(fault=found) if isinstance(found, Fault) else Result(report_json=written(found))


def _of_ranks(job: Job, *, time_limit_s: float, begun_s: float | None) -> Report | Fault:
    with _meeting_place() as port:
        jobs = [replace(job, place=Place(rank, job.ranks, port)) for rank in range(job.ranks)]
        ranks = run_forked(
            WORK,
            [msgspec.json.encode(one) for one in jobs],
            at_once=job.ranks,
            time_limit_s=time_limit_s,
            ended=lambda count: None,
            together=True,
            begun_s=begun_s,
        )
    results = [
        None if ended.result is None else msgspec.json.decode(ended.result, type=Result)
        for ended in ranks
    ]
    found = [
        parsed(result.report_json.encode(), Report, name=f"rank {rank}")
        for rank, result in enumerate(results)
        if result is not None and result.report_json is not None
    ]
    return merged(found) if len(found) == job.ranks else _fault(job, ranks, results)


def report_of_ranks(job: Job, *, time_limit_s: float, begun_s: float | None = None) -> Report:
    """The same for a person: raises the error of the rank that failed, which names it.

    The limit counts from `begun_s`, by `time.time()`, or from when the ranks start.
    """
    fault = _of_ranks(job, time_limit_s=time_limit_s, begun_s=begun_s)
    if isinstance(fault, Report):
        return fault
    if fault.kind == "cannot":
        raise CannotDoItHere(fault.message)
    if fault.kind == "usage":
        raise UsageError(fault.message)
    raise UserCodeError(fault.message, fault.details)


def variables(place: Place) -> dict[str, str]:
    """What torchrun tells a rank; the store is there already, as its agent's is."""
    said = {
        "RANK": place.rank, "LOCAL_RANK": place.rank, "GROUP_RANK": 0,
        "WORLD_SIZE": place.count, "LOCAL_WORLD_SIZE": place.count, "GROUP_WORLD_SIZE": 1,
        "MASTER_ADDR": _HERE, "MASTER_PORT": place.port, STARTED_HERE: place.port,
        "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0,
    }  # fmt: skip
    names = [name for _, name in socket.if_nameindex() if name in _LOOPBACKS]
    for library in ("GLOO", "NCCL") if names else ():
        said[f"{library}_SOCKET_IFNAME"] = names[0]
    return {name: str(value) for name, value in said.items()}


@contextmanager
def _meeting_place() -> Iterator[int]:
    """The port of a store that this process holds: the system chose it, so that nobody else has it."""
    from torch._C._distributed_c10d import TCPStore

    try:
        store = TCPStore(
            _HERE, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CannotDoItHere(
            f"the ranks have nowhere to meet, since nothing can be reached at {_HERE}: {reason}"
        ) from error
    yield store.port


def _fault(job: Job, ranks: Sequence[Ended], results: Sequence[Result | None]) -> Fault:
    """Of the rank that began it: one that crashed, else one that raised, else one that hung."""
    for rank, ended in enumerate(ranks):
        if ended.result is None and ended.code is not None and not ended.in_vain:
            return _said_of(f"rank {rank}", fault_of_process(ended, RelativePaths(Path(job.root))))
    faults = {rank: one.fault for rank, one in enumerate(results) if one and one.fault}
    own = {rank: fault for rank, fault in faults.items() if not _OF_OTHERS.search(fault.message)}
    if own or all(result is not None for result in results):
        alike = {rank: fault.message for rank, fault in (own or faults).items()}
        first, fault = next(iter((own or faults).items()))
        everywhere = len(alike) == len(ranks) and len(set(alike.values())) == 1
        return _said_of("all ranks" if everywhere else f"rank {first}", fault)
    return _hung(ranks)


def _said_of(who: str, fault: Fault) -> Fault:
    return replace(fault, message=f"on {who}: {fault.message}")


def _hung(ranks: Sequence[Ended]) -> Fault:
    """Where each rank was that left no result: those in a collective wait for the others."""
    stands = {
        rank: Stand.of(
            (match["file"], int(match["line"]), match["function"]) for match in ended.frames()
        )
        for rank, ended in enumerate(ranks)
        if ended.result is None
    }
    message, details = did_not_end(stands, ranks[0].time_limit_s)
    return Fault("timed-out", UserCodeError.exit_code, message, details)
