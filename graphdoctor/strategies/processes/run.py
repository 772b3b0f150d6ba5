"""A job -> its row, from a process of its own: a crash, a hang or a spoilt device costs that row only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from graphdoctor.strategies.processes.job import OUTPUT, Job, read_row
from graphdoctor.strategies.processes.start_signal import BEFORE_THE_END_S, begun_now
from graphdoctor.target.child_process import dumped_frames, search_path
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.escape import visible
from graphdoctor.values.report import Location, StrategyOutcome

_MOST_WORDS = 300


def in_own_process(job: Job) -> StrategyOutcome:
    """Try it in a process of its own; never raises for what happens there."""
    with own_processes() as processes:
        return processes.run(job, is_last=True)


@contextmanager
def own_processes() -> Iterator[OwnProcesses]:
    """Processes for one strategy each; none is left when the block is."""
    processes = OwnProcesses()
    try:
        yield processes
    finally:
        processes.end()


class OwnProcesses:
    """One process at a time works; the next starts up beside it, and waits at its gate.

    Interpreter, torch and graphdoctor take seconds to import, and touch no GPU. Compilers start cold:
    what they keep on disk goes to a folder of its own, and goes with it, so that the time to prepare
    is that of a first use.
    """

    def __init__(self) -> None:
        self._next: _Process | None = None

    def start_next(self) -> None:
        """Let the process of the next job start up; no more than one waits."""
        if self._next is None:
            self._next = _Process()

    def run(self, job: Job, *, is_last: bool) -> StrategyOutcome:
        """Try it there, and have ended it, before this returns; never raises for what happens there."""
        self.start_next()
        process, self._next = self._next, None
        assert process is not None
        with process:
            process.open_gate(job)
            if not is_last:
                self.start_next()
            return process.row(job)

    def end(self) -> None:
        """End the one that waits, if one does."""
        process, self._next = self._next, None
        if process is not None:
            process.end()


class _Process:
    """A process from its start to its end, and its private folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="graphdoctor-", ignore_cleanup_errors=True
        )
        self._path = Path(self._folder.name)
        self._popen = _started(self._path)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def open_gate(self, job: Job) -> None:
        """Its time begins."""
        job.write(self._path)
        gate = self._popen.stdin
        assert gate is not None
        with suppress(OSError):  # it ended before: its exit code tells more
            gate.write(begun_now())
            gate.close()

    def row(self, job: Job) -> StrategyOutcome:
        """What it leaves when it ends, or how it ended, or that its time was over."""
        code = self._code(job.time_limit_s)
        row = read_row(self._path)
        if row is not None:
            return row
        output = (self._path / OUTPUT).read_text(encoding="utf-8", errors="replace")
        failed = replace(job.row, code="", location=_last_own_line(output))
        if code is None:
            reason = f"it did not end within {job.time_limit_s:.0f} s"
            return replace(failed, status="timed-out", reason=reason)
        return replace(failed, status="failed", reason=_how_it_ended(code, output))

    def _code(self, time_limit_s: float) -> int | None:
        """The exit code; None where its time was over.

        Shortly before, it writes down where it is, and reading the stacks of running threads can
        crash: such an end says nothing of the strategy, but that its time was over.
        """
        begun_s = time.monotonic()
        try:
            code = self._popen.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            return None
        is_at_the_end = time.monotonic() - begun_s > time_limit_s - BEFORE_THE_END_S
        return None if code < 0 and is_at_the_end else code

    def end(self) -> None:
        """With all that it started, and with its folder."""
        _end(self._popen)
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._popen.wait()
        self._folder.cleanup()


def _started(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "graphdoctor.strategies.processes.child", str(folder)]
    caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    environment = {
        **os.environ,
        **{name: str(folder / below) for name, below in caches.items()},
        "PYTHONPATH": search_path(),
    }
    with (folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            command,
            bufsize=0,  # what is written to its gate arrives there
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # so that a compiler's own processes end with it
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it started and left behind; its group bears its number."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if process.poll() is None:
            process.kill()


def _how_it_ended(code: int, output: str) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", probably for want of memory" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    said = output.strip().splitlines()
    last = f": {visible(said[-1])[:_MOST_WORDS]}" if said else ""
    return f"it ended its process with exit code {code}{last}"


def _last_own_line(output: str) -> Location | None:
    """The innermost line of the user's in what the process could still say of its main thread."""
    for frame in dumped_frames(output):
        if not is_machinery(frame["file"]):
            return Location(frame["file"], int(frame["line"]), frame["function"])
    return None
