"""What processes of graphdoctor's own share, and a fresh interpreter for a job, since CUDA does not work in a fork."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from graphdoctor.values.escape import visible

JOB, RESULT, OUTPUT = "job", "result", "output.txt"  # in the private folder of a process
BEFORE_THE_END_S = 1.0  # a process whose time is nearly over writes down where it is
_MOST_WORDS = 300
# Since Python 3.14 the stack of C functions follows that of Python's.
_C_STACK = re.compile(r"^.*'s C stack trace \(most recent call first\):\n(?:  .*\n?)*", re.M)
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.*)')


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module`, which never imports a `torch.py` of the folder that it is started in."""
    return [sys.executable, "-P", "-m", f"graphdoctor.device.processes.{module}", *arguments]


def environment(**variables: str) -> Mapping[str, str]:
    """This process's own, with one order of sets for all runs.

    The search path has the folder where this process found graphdoctor, installed or not.
    """
    here = str(Path(__file__).resolve().parents[3])
    given = os.environ.get("PYTHONPATH")
    path = f"{given}{os.pathsep}{here}" if given else here
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, **variables}


def end_group(pid: int, *, is_reaped: bool) -> None:
    """End a process with all that it started and left behind; it leads a group of its own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if not is_reaped:  # it runs, and has not made its group yet
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Failed(Exception):
    """A job that failed: `result` says why, and what was to be done together with it is in vain."""

    def __init__(self, result: bytes) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, after how long, and what it left. `code` is None where its time was over.

    `result` is None where it left none; it is whole where it is there, however the process ended.
    `in_vain`: it was ended because another one had failed, which it was to work with.
    """

    result: bytes | None
    output: str
    code: int | None
    time_limit_s: float
    seconds: float = 0.0
    in_vain: bool = False

    @staticmethod
    def of(
        folder: Path,
        code: int | None,
        *,
        seconds: float,
        time_limit_s: float,
        in_vain: bool = False,
    ) -> Ended:
        """From the folder of a process that ended, or was ended, after so many seconds."""
        try:
            result = (folder / RESULT).read_bytes()
        except OSError:
            result = None
        try:
            output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
        except OSError:
            output = ""
        # Reading the stacks of running threads can crash: such an end says nothing of the job.
        is_at_the_end = seconds > time_limit_s - BEFORE_THE_END_S
        is_late = code is None or (code < 0 and is_at_the_end)
        return Ended(result, output, None if is_late else code, time_limit_s, seconds, in_vain)

    @property
    def reason(self) -> str:
        """Why it left no result."""
        code = self.code
        if self.in_vain:
            return "it was ended since another process, which it works with, had failed"
        if code is None:
            return f"it did not end within {round(self.time_limit_s, 2):g} s"
        if code >= 0:
            return f"it ended its process with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", probably because memory ran out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"

    @property
    def _said(self) -> str:
        return _C_STACK.sub("", self.output)

    @property
    def last_words(self) -> str:
        """The last line that it printed, or ""."""
        said = self._said.strip().splitlines()
        return visible(said[-1])[:_MOST_WORDS] if said else ""

    def frames(self) -> Iterator[re.Match[str]]:
        """The main thread's, as faulthandler wrote them last, innermost first: file, line, function."""
        _, _, dump = self._said.rpartition("(most recent call first):")
        return filter(None, map(_FRAME.match, dump.splitlines()))


@contextmanager
def fresh_processes(work: str, *, has_cold_caches: bool = False) -> Iterator[FreshProcesses]:
    """Processes for one job each; none is left when the block is."""
    processes = FreshProcesses(work, has_cold_caches=has_cold_caches)
    try:
        yield processes
    finally:
        processes.end()


class FreshProcesses:
    """One process at a time works; the next starts up meanwhile, and waits for its start signal.

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
        with suppress(OSError):  # it ended before: its exit code says more
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
