"""`python -m graphdoctor.check.processes.server PLAN`: a plan -> a process for each of its jobs.

For the emulated device it imports torch once for all and forks. It ends jobs that take too long,
and writes the number of each job that ended to stdout. It runs no model itself, so that no model
can touch the others.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from graphdoctor.check.processes.job import Job, Plan, Result, write_result
from graphdoctor.values.check import Fault
from graphdoctor.values.errors import UserCodeError

_POLL_S = 0.01
_GRACE_S = 1.0  # after the limit, for the child to write where it hangs


class _Children:
    """The running jobs by their process ids, each with the time at which it must have ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.running: dict[int, tuple[Job, float]] = {}

    def start(self, job: Job) -> None:
        pid = _fork(self.plan, job) if self.plan.device == "emulated" else _spawn(job)
        limit_s = self.plan.time_limit_s + _GRACE_S
        self.running[pid] = (job, time.monotonic() + limit_s)

    def end_overdue(self) -> None:
        now = time.monotonic()
        for pid, (job, deadline) in self.running.items():
            if now > deadline:
                message = f"it did not end within {self.plan.time_limit_s:g} s"
                fault = Fault("timed-out", UserCodeError.exit_code, message)
                write_result(self.plan.result_path(job), Result(fault=fault))
                _kill(pid)

    def reap(self) -> None:
        """Take note of the jobs that ended."""
        for pid in [*self.running]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                job, _ = self.running.pop(pid)
                _kill(pid)  # what the model started and left behind
                if not self.plan.result_path(job).exists():
                    fault = _crash(os.waitstatus_to_exitcode(status))
                    write_result(self.plan.result_path(job), Result(fault=fault))
                print(job.number, flush=True)

    def end_all(self) -> None:
        for pid in self.running:
            _kill(pid)


def _fork(plan: Plan, job: Job) -> int:
    """A copy of this process, which has torch already."""
    from graphdoctor.check.processes.child import live

    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        try:
            live(plan, job)
        finally:
            os._exit(1)
    return pid


def _spawn(job: Job) -> int:
    """A fresh process: once anything has counted the devices, CUDA refuses to work in a fork."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "graphdoctor.check.processes.child",
        sys.argv[1],
        str(job.number),
    ]
    return os.posix_spawn(sys.executable, command, os.environ)


def main() -> None:
    """Run the plan."""
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    children = _Children(plan)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    if plan.device == "emulated":
        importlib.import_module("graphdoctor.check.processes.child")
        gc.freeze()  # what is loaded now stays shared between the children
    waiting = [*plan.jobs]
    try:
        while waiting or children.running:
            while waiting and len(children.running) < plan.at_once:
                children.start(waiting.pop(0))
            children.end_overdue()
            children.reap()
            time.sleep(_POLL_S)
    finally:
        children.end_all()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _kill(pid: int) -> None:
    """End a process with all that it started; it leads a group of its own as soon as it runs."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        return


def _crash(code: int) -> Fault:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", probably for want of memory" if name == "SIGKILL" else ""
        message = f"its process was ended by {name}{hint}"
    else:
        message = f"it ended its process with exit code {code}"
    return Fault("crashed", UserCodeError.exit_code, message)


if __name__ == "__main__":
    main()
