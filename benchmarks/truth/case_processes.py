"""Cases -> their lines, each from a process of its own: one that crashes or hangs costs its own lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo import Case

Line = dict[str, Any]
Emit = Callable[[Line], None]
Work = Callable[[Case, Emit], None]


@dataclass(frozen=True)
class Running:
    pid: int
    case: Case
    part: Path
    began: float

    def is_stuck(self, limit_s: float) -> bool:
        """Whether it has written nothing for so long."""
        wrote = self.part.stat().st_mtime if self.part.exists() else self.began
        return time.time() - max(wrote, self.began) > limit_s


def run(
    cases: list[Case], work: Work, *, folder: Path, jobs: int, limit_s: float, deadline: float
) -> Iterator[Line]:
    """`deadline` is a time of `time.monotonic`: what runs then is ended, and the lines that it wrote are kept."""
    waiting, running = deque(cases), []
    while waiting or running:
        over = time.monotonic() > deadline
        while waiting and len(running) < jobs and not over:
            running.append(_started(waiting.popleft(), work, folder))
        for each in tuple(running):
            ended, status = os.waitpid(each.pid, os.WNOHANG)
            stuck = each.is_stuck(limit_s)
            if not ended and not stuck and not over:
                continue
            _end(each.pid, wait=not ended)
            running.remove(each)
            yield from lines_of(each.part)
            if over and not ended:
                continue  # it is for another run
            if not ended or status != 0:
                why = _words(status) if ended else f"nothing within {limit_s:g} s"
                yield {**named(each.case), "crash": why}
        if over and not running:
            return
        time.sleep(0.02)


def named(case: Case) -> Line:
    return {
        "model": case.model,
        "family": case.family,
        "kind": case.kind,
        "class": case.class_name,
    }


def forked(work: Callable[[Emit], None], emit: Emit, *, limit_s: float) -> str:
    """Runs in a copy of this process and waits for it: why it did not end well, or nothing."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(emit)
            status = 0
        finally:
            os._exit(status)
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return _words(status) if status else ""
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return f"no end within {limit_s:g} s"


def _started(case: Case, work: Work, folder: Path) -> Running:
    part = folder / f"{case.family}.{case.model}.part".replace("/", "-")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()  # its own forks end with it
            _work(case, work, part)
            status = 0
        finally:
            os._exit(status)
    return Running(pid, case, part, time.time())


def _work(case: Case, work: Work, part: Path) -> None:
    with part.open("a", encoding="utf-8") as file, part.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

        def emit(line: Line) -> None:
            file.write(json.dumps({**named(case), **line}) + "\n")
            file.flush()

        work(case, emit)
    part.with_suffix(".log").unlink()


def _end(pid: int, *, wait: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if wait:
        os.waitpid(pid, 0)


def lines_of(part: Path) -> list[Line]:
    """The whole lines of a process that may have been ended while it wrote; the file goes."""
    found = []
    if part.exists():
        for text in part.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(text))
        part.unlink()
    return found


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.WEXITSTATUS(status)}"
