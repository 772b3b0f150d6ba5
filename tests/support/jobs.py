"""Work for processes of graphdoctor's own, each kind by the first word of its job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from graphdoctor.device.processes.process import Failed


def do(job: bytes) -> bytes:
    """Answer with what was said, or end in the way that it says."""
    kind, _, rest = job.decode().partition(" ")
    if kind == "leave":
        _leave_a_process(Path(rest))
    elif kind == "exit":
        print(rest)
        sys.stdout.flush()
        os._exit(7)
    elif kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "raise":
        raise ValueError(rest)
    elif kind == "hang":
        _leave_a_process(Path(rest))
        time.sleep(600)
    elif kind == "fail":
        raise Failed(rest.encode())
    elif kind == "input":
        return (sys.stdin.read() or "nothing").encode()
    return f"done {rest} {hash(rest)}".encode()


def _leave_a_process(path: Path) -> None:
    """One that goes on after this one, and that says who both are."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    part = path.with_suffix(".part")
    part.write_text(f"{os.getpid()} {left.pid}")
    part.replace(path)
