"""`python -m graphdoctor.device.processes.child WORK FOLDER`: run the job of a folder, and write its result."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from graphdoctor.device.processes.process import BEFORE_THE_END_S, JOB, RESULT, Failed

_STDIN, _STDERR = 0, 2
_MOST_BYTES = 64
_SOONEST_S = 0.1
_FAILED = 1


def main() -> None:
    """Wait for the start signal, do the job and leave.

    Before the signal, another process works: all is imported by then, and no GPU touched. The
    signal says when the time began and how long it is; the end of the input instead of it says
    that the process is not needed.
    """
    faulthandler.enable()
    work, folder = sys.argv[1], Path(sys.argv[2])
    importlib.import_module(work)
    told = os.read(_STDIN, _MOST_BYTES).split()
    if not told:
        os._exit(0)
    begun_s, time_limit_s = map(float, told)
    live(work, folder, begun_s=begun_s, time_limit_s=time_limit_s, lifeline=os.dup(_STDIN))


def live(work: str, folder: Path, *, begun_s: float, time_limit_s: float, lifeline: int) -> None:
    """Do the job and leave the process, without waiting for threads of the model or of a compiler.

    Output goes to the folder already; nothing can be read from the input. `lifeline` is a pipe: its
    end is that of the process that started this one, and ends this one with all that it started.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    errors = os.dup(_STDERR)  # a model may close or redirect its own
    faulthandler.enable(errors)
    # Shortly before the parent ends it: where it hangs is the most that is known of a hang.
    left_s = time_limit_s - (time.time() - begun_s)
    faulthandler.dump_traceback_later(max(_SOONEST_S, left_s - BEFORE_THE_END_S), file=errors)
    code = 0
    try:
        result = importlib.import_module(work).do((folder / JOB).read_bytes())
    except Failed as failed:
        result, code = failed.result, _FAILED
    faulthandler.cancel_dump_traceback_later()
    part = folder / f"{RESULT}.part"
    part.write_bytes(result)
    part.replace(folder / RESULT)  # whole or not at all: it may be killed at any moment
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
