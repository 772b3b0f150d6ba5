"""Run a job in a fresh interpreter, since CUDA does not work in a fork, and say how it ended."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphdoctor.device.processes.process import (
    JOB,
    OUTPUT,
    Ended,
    command,
    end_group,
    environment,
)


@contextmanager
def fresh_processes(work: str, *, has_cold_caches: bool = False) -> Iterator[FreshProcesses]:
    """Processes for one job each; none is left when the block is."""
    processes = FreshProcesses(work, has_cold_caches=has_cold_caches)
    try:
        yield processes
    finally:
        processes.end()


class FreshProcesses:
    """One process at a time works; the next starts up beside it, and waits for its start signal.

    Interpreter, torch and graphdoctor take seconds to import, and touch no GPU. With
    `has_cold_caches`, what compilers keep on disk goes to a folder of the process, and goes with
    it, so that the time to prepare is that of a first use.
    """

    def __init__(self, work: str, *, has_cold_caches: bool) -> None:
        self._work = work
        self._has_cold_caches = has_cold_caches
        self._next: _Process | None = None

    def start_next(self) -> None:
        """Let the process of the next job start up; no more than one waits."""
        if self._next is None:
            self._next = _Process(self._work, has_cold_caches=self._has_cold_caches)

    def run(self, job: bytes, *, time_limit_s: float, is_last: bool) -> Ended:
        """Do it there, and have ended it, before this returns; never raises for what happens there."""
        self.start_next()
        process, self._next = self._next, None
        assert process is not None
        try:
            process.signal(job, time_limit_s)
            if not is_last:
                self.start_next()
            return process.wait(time_limit_s)
        finally:
            process.end()

    def end(self) -> None:
        """End the one that waits, if one does."""
        process, self._next = self._next, None
        if process is not None:
            process.end()


class _Process:
    """A process from its start to its end, and its private folder."""

    def __init__(self, work: str, *, has_cold_caches: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="graphdoctor-", ignore_cleanup_errors=True
        )
        self.path = Path(self._folder.name)
        names = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        caches = {name: str(self.path / below) for name, below in names.items()}
        with (self.path / OUTPUT).open("wb") as output:
            self.popen = subprocess.Popen(
                command("child", work, str(self.path)),
                bufsize=0,  # what is written to its input arrives there
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment(**(caches if has_cold_caches else {})),
                start_new_session=True,  # so that a compiler's own processes end with it
            )

    def signal(self, job: bytes, time_limit_s: float) -> None:
        """Its time begins. Its input stays open: where that ends, so does the process."""
        (self.path / JOB).write_bytes(job)
        assert self.popen.stdin is not None
        with suppress(OSError):  # it ended before: its exit code tells more
            self.popen.stdin.write(f"{time.time()!r} {time_limit_s!r}\n".encode())

    def wait(self, time_limit_s: float) -> Ended:
        """How it ended, or that its time was over."""
        begun_s = time.monotonic()
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self.popen.wait(time_limit_s)
        seconds = time.monotonic() - begun_s
        return Ended.of(self.path, code, seconds=seconds, time_limit_s=time_limit_s)

    def end(self) -> None:
        """With all that it started, and with its folder."""
        end_group(self.popen.pid, is_reaped=self.popen.poll() is not None)
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        self.popen.wait()
        self._folder.cleanup()
