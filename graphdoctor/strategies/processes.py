"""A job -> its row, from a process of its own: a crash, a hang or a spoilt device costs that row only."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from graphdoctor.escape import visible
from graphdoctor.frames import is_machinery
from graphdoctor.model import Location, StrategyOutcome
from graphdoctor.strategies.job import OUTPUT, Job, read_row

_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.*)')
_MOST_WORDS = 300


def in_own_process(job: Job) -> StrategyOutcome:
    """Try it there; never raises for what happens there.

    Compilers start cold: what they keep on disk goes to a folder of its own, and goes with it, so
    that the time to prepare is that of a first use.
    """
    with tempfile.TemporaryDirectory(prefix="graphdoctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job.write(folder)
        code = _run(folder, job.time_limit_s)
        row = read_row(folder)
        if row is not None:
            return row
        output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
        failed = replace(job.row, code="", location=_last_own_line(output))
        if code is None:
            reason = f"it did not end within {job.time_limit_s:.0f} s"
            return replace(failed, status="timed-out", reason=reason)
        return replace(failed, status="failed", reason=_how_it_ended(code, output))


def _run(folder: Path, time_limit_s: float) -> int | None:
    """The exit code; None where the time was over, and all that it had started was ended."""
    command = [
        *(sys.executable, "-P", "-m", "graphdoctor.strategies.child"),
        *(str(folder), repr(time.time())),
    ]
    caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    environment = {
        **os.environ,
        **{name: str(folder / below) for name, below in caches.items()},
        "PYTHONPATH": _search_path(),
    }
    with (
        (folder / OUTPUT).open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # so that a compiler's own processes end with it
        ) as process,
    ):
        try:
            return process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it started and left behind; its group bears its number."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if process.poll() is None:
            process.kill()


def _search_path() -> str:
    """Where this process found graphdoctor, also when that is a folder nobody installed."""
    here = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return f"{given}{os.pathsep}{here}" if given else here


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
    _, _, dump = output.rpartition("(most recent call first):")
    for frame in filter(None, map(_FRAME.match, dump.splitlines())):
        if not is_machinery(frame["file"]):
            return Location(frame["file"], int(frame["line"]), frame["function"])
    return None
