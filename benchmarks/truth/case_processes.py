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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo import Case

Line = dict[str, Any]
Emit = Callable[[Line], None]
Work = Callable[["Case", Emit], None]


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


class Forks:
    """Works on each case in a copy of this process."""

    def __init__(self, cases: list[Case], work: Work, *, folder: Path, limit_s: float) -> None:
        self._waiting, self._count = deque(cases), len(cases)
        self._work, self._folder, self._limit_s = work, folder, limit_s
        self._running: list[Running] = []

    @property
    def processes(self) -> int:
        return len(self._running)

    @property
    def left(self) -> float:
        """The share of the cases that none has begun with."""
        return len(self._waiting) / max(1, self._count)

    def step(self, places: int) -> Iterator[Line]:
        """Starts as many as there are places for; the lines of those that ended."""
        while self._waiting and len(self._running) < places:
            self._running.append(_started(self._waiting.popleft(), self._work, self._folder))
        for each in tuple(self._running):
            ended, status = os.waitpid(each.pid, os.WNOHANG)
            if not ended and not each.is_stuck(self._limit_s):
                continue
            self._end(each, wait=not ended)
            yield from lines_of(each.part)
            if not ended or status != 0:
                why = words(status) if ended else f"nothing within {self._limit_s:g} s"
                yield {**named(each.case), "crash": why}

    def stop(self) -> Iterator[Line]:
        """Ends what runs; the lines that it wrote. The rest is for another run."""
        for each in tuple(self._running):
            self._end(each, wait=True)
            yield from lines_of(each.part)

    def _end(self, each: Running, *, wait: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGKILL)
        if wait:
            os.waitpid(each.pid, 0)
        self._running.remove(each)


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
            return words(status) if status else ""
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


def lines_of(part: Path) -> list[Line]:
    """The whole lines of a process that may have been ended while it wrote; the file goes."""
    found = []
    if part.exists():
        for text in part.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(text))
        part.unlink()
    return found


def words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.WEXITSTATUS(status)}"
