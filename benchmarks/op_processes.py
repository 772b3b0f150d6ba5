"""Tasks -> their lines, from processes side by side; one that dies takes one sample with it."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from op_task import Task, touch_cuda, work


@dataclass(frozen=True)
class Running:
    process: Any
    task: Task
    part: Path
    until: float


class Pool:
    """Runs tasks side by side, each in a process that forked, or was started, after the import."""

    def __init__(self, folder: Path, options: argparse.Namespace, *, deadline: float) -> None:
        self._folder = folder
        self._options = options
        self._deadline = deadline
        self._running: list[Running] = []
        self._count = 0
        self._context = multiprocessing.get_context("fork")
        self.left = 0

    def run(self, tasks: list[Task]) -> Iterator[dict[str, Any]]:
        if self._options.device == "cuda" and not self._can_fork():
            print(
                "CUDA refuses to start after a fork; importing anew in each process",
                file=sys.stderr,
            )
            self._context = multiprocessing.get_context("spawn")
        waiting = deque(tasks)
        while (waiting or self._running) and time.monotonic() < self._deadline:
            while waiting and len(self._running) < self._options.workers:
                self._start(waiting.popleft())
            for ended in self._ended():
                yield from self._results(ended, waiting)
            time.sleep(0.01)
        self.left = len(waiting) + len(self._running)
        for running in self._running:
            running.process.kill()
            running.process.join()
            yield from (line for line in _parsed(running.part) if "begin" not in line)

    def _can_fork(self) -> bool:
        process = self._context.Process(target=touch_cuda)
        process.start()
        process.join(60)
        return process.exitcode == 0

    def _start(self, task: Task) -> None:
        self._count += 1
        part = self._folder / f"{self._count}.jsonl"
        process = self._context.Process(target=work, args=(task, part))
        process.start()
        self._running.append(Running(process, task, part, time.monotonic() + self._options.limit_s))

    def _ended(self) -> list[Running]:
        ended = []
        for running in self._running:
            if time.monotonic() > running.until:
                running.process.kill()
                running.process.join()
            if running.process.exitcode is not None:
                ended.append(running)
        for running in ended:
            self._running.remove(running)
        return ended

    def _results(self, ended: Running, waiting: deque[Task]) -> Iterator[dict[str, Any]]:
        """The lines of a process; one that died says in which sample, and the others go on later."""
        lines = _parsed(ended.part)
        task, code = ended.task, ended.process.exitcode
        begun = [line["begin"] for line in lines if "begin" in line]
        yield from (line for line in lines if "begin" not in line)
        if lines and lines[-1].get("stopped"):
            waiting.append(replace(task, start=begun[-1] + 1))
        elif code != 0:
            timeout = time.monotonic() > ended.until
            reason = (
                f"no end within {self._options.limit_s} s" if timeout else f"exit status {code}"
            )
            reason += _last_words(ended.part)
            yield {"index": task.index, "mode": task.mode, "crash": reason, "position": begun[-1:]}
            if begun and not timeout:
                waiting.append(replace(task, start=begun[-1] + 1))


def _parsed(part: Path) -> list[dict[str, Any]]:
    lines = part.read_text(encoding="utf-8").splitlines() if part.exists() else []
    parsed = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line of a process that was ended
            parsed.append(json.loads(line))
    return parsed


def _last_words(part: Path) -> str:
    log = Path(f"{part}.log")
    words = (
        log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if log.exists()
        else []
    )
    return f": {words[-1][:200]}" if words else ""
