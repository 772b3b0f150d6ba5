"""Run many jobs in forks of a server that imported torch once, and say how each ended.

`python -m graphdoctor.device.processes.forked WORK FOLDER AT_ONCE TIME_LIMIT_S TOGETHER BEGUN_S` is the server. It
ends jobs that take too long, and writes a line for each that ended. It runs no model itself, so
that no model can touch the others.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from graphdoctor.device.processes.process import (
    BEFORE_THE_END_S,
    JOB,
    OUTPUT,
    Ended,
    command,
    end_group,
    environment,
)
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError, require_torch
from graphdoctor.values.escape import visible

_STOP_S = 5.0
_POLL_S = 0.01
_LATE, _IN_VAIN = "late", "in-vain"  # in the place of an exit code
_LAST_WORDS_S = 2.0  # what the others may still say of why they fail, once one has failed


def run_forked(
    work: str,
    jobs: Sequence[bytes],
    *,
    at_once: int,
    time_limit_s: float,
    ended: Callable[[int], None],
    together: bool = False,
    begun_s: float | None = None,
) -> list[Ended]:
    """Do all jobs, so many at once; `ended` is told how many have. Raises CannotDoItHere.

    Those that work `together` wait for each other: where one fails, the others are ended. The limit
    counts from `begun_s`, by `time.time()`, or without it from each job's start.
    """
    if not hasattr(os, "fork"):
        raise CannotDoItHere("this system cannot fork processes, which a check needs; use WSL")
    require_torch()
    with tempfile.TemporaryDirectory(prefix="graphdoctor-", ignore_cleanup_errors=True) as name:
        for number, job in enumerate(jobs):
            folder = Path(name, str(number))
            folder.mkdir()
            (folder / JOB).write_bytes(job)
        found: dict[int, Ended] = {}
        given = (str(at_once), repr(time_limit_s), str(int(together)), repr(begun_s or 0.0))
        with _server(work, name, *given) as lines:
            for line in lines:
                which, code, seconds = line.split()
                found[int(which)] = Ended.of(
                    Path(name, which),
                    None if code in (_LATE, _IN_VAIN) else int(code),
                    seconds=float(seconds),
                    time_limit_s=time_limit_s,
                    in_vain=code == _IN_VAIN,
                )
                ended(len(found))
        return [found[number] for number in range(len(jobs))]


@contextmanager
def _server(work: str, folder: str, *arguments: str) -> Iterator[Iterator[str]]:
    """The lines that it writes; it ends with the block."""
    errors = Path(folder, OUTPUT)
    with (
        errors.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            command("forked", work, folder, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment(),
        ) as server,
    ):
        assert server.stdout is not None
        try:
            yield iter(server.stdout)
            server.wait()
        finally:
            if server.poll() is None:
                server.terminate()
                with suppress(subprocess.TimeoutExpired):
                    server.wait(_STOP_S)
                server.kill()  # its children end with it
    if server.returncode != 0:
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = visible(said[-1]) if said else f"exit code {server.returncode}"
        raise GraphDoctorError(f"the process that runs the targets failed: {reason}")


def main() -> None:
    """Serve: import what the jobs need, fork for each, and end all when nobody reads any more."""
    work, folder = sys.argv[1], Path(sys.argv[2])
    importlib.import_module(work)
    look_through_modules()
    gc.freeze()  # what is loaded now stays shared between the children
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopped.append(number))
    children = _Children(
        work,
        folder,
        time_limit_s=float(sys.argv[4]),
        together=sys.argv[5] == "1",
        begun_s=float(sys.argv[6]),
    )
    folders = (path for path in folder.iterdir() if path.is_dir())
    waiting = sorted(folders, key=lambda path: int(path.name))
    try:
        while waiting or children.running:
            while waiting and len(children.running) < int(sys.argv[3]):
                children.start(waiting.pop(0))
            children.end_overdue()
            children.reap()
            if stopped or select.select([sys.stdin], [], [], _POLL_S)[0]:
                break  # its input ended: whoever started it is gone
    finally:
        children.end_all()
    os._exit(128 + stopped[0] if stopped else 0)


def look_through_modules() -> None:
    """Emulate a device once: no child then has to look for the names that it replaces in all modules.

    A third of what a small target takes: each child would write to the memory that they all share.
    """
    if (emulated := sys.modules.get("graphdoctor.device.emulated")) is not None:
        with emulated.EmulatedDevice():
            pass


class _Children:
    """The running jobs by their process ids, each with its folder and when it began."""

    def __init__(
        self, work: str, folder: Path, *, time_limit_s: float, together: bool, begun_s: float
    ) -> None:
        self.work = work
        self.time_limit_s = time_limit_s
        self.together = together
        self.begun_s = begun_s  # of all jobs; 0.0: each has its own time
        self.lifeline, self._own_end = os.pipe()  # ends with this process
        self.running: dict[int, tuple[Path, float]] = {}
        self._late: set[int] = set()
        self._in_vain: dict[int, float] = {}  # when it was told to end
        self._failed_s: float | None = None  # when one failed that works with the others

    def start(self, folder: Path) -> None:
        """A copy of this process, which has torch already."""
        begun_s = self.begun_s or time.time()
        pid = os.fork()
        if pid == 0:
            try:
                self._live(folder, begun_s)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        self.running[pid] = (folder, time.monotonic() - (time.time() - begun_s))

    def _live(self, folder: Path, begun_s: float) -> None:
        from graphdoctor.device.processes.child import live

        os.setsid()  # so that the model's own processes end with it
        os.close(self._own_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        live(
            self.work,
            folder,
            begun_s=begun_s,
            time_limit_s=self.time_limit_s,
            lifeline=self.lifeline,
        )

    def end_overdue(self) -> None:
        for pid, (_, begun_s) in self.running.items():
            if time.monotonic() - begun_s > self.time_limit_s and pid not in self._late:
                self._late.add(pid)
                end_group(pid, is_reaped=False)
        if self._failed_s is not None and time.monotonic() - self._failed_s > _LAST_WORDS_S:
            for pid in self.running:
                # Where it waits is written down first: faulthandler does so for
                # this signal.
                if pid not in self._in_vain:
                    self._in_vain[pid] = time.monotonic()
                    os.kill(pid, signal.SIGABRT)
                elif time.monotonic() - self._in_vain[pid] > BEFORE_THE_END_S:
                    end_group(pid, is_reaped=False)

    def reap(self) -> None:
        """Tell of the jobs that ended."""
        for pid in [*self.running]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                folder, begun_s = self.running.pop(pid)
                end_group(pid, is_reaped=True)  # what the model started and left behind
                code = os.waitstatus_to_exitcode(status)
                if self.together and code != 0 and self._failed_s is None:
                    self._failed_s = time.monotonic()
                said = _LATE if pid in self._late else _IN_VAIN if pid in self._in_vain else code
                print(folder.name, said, time.monotonic() - begun_s, flush=True)

    def end_all(self) -> None:
        for pid in self.running:
            end_group(pid, is_reaped=False)


if __name__ == "__main__":
    main()
