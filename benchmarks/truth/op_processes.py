"""Tasks -> their lines, from processes side by side; one that dies takes one sample with it."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import signal
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
    began: float

    def is_stuck(self, limit_s: float) -> bool:
        """Whether it has written nothing for so long."""
        wrote = self.part.stat().st_mtime if self.part.exists() else self.began
        return time.time() - max(wrote, self.began) > limit_s


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
            lines = _parsed(running.part)
            whole = [line for line in lines if line["place"] < lines[-1]["place"]]
            yield from _without_places(whole)  # the last entry is for another time

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
        self._running.append(Running(process, task, part, time.time()))

    def _ended(self) -> list[Running]:
        ended = []
        for running in self._running:
            if running.process.exitcode is None and running.is_stuck(self._options.limit_s):
                running.process.kill()
                running.process.join()
            if running.process.exitcode is not None:
                ended.append(running)
        for running in ended:
            self._running.remove(running)
        return ended

    def _results(self, ended: Running, waiting: deque[Task]) -> Iterator[dict[str, Any]]:
        """The lines of a process; what it did not come to goes on in others."""
        lines = _parsed(ended.part)
        task, code = ended.task, ended.process.exitcode
        yield from _without_places(lines)
        begun = [line for line in lines if "begin" in line]
        place, position = (begun[-1]["place"], begun[-1]["begin"]) if begun else (0, -1)
        index = task.entries[place][0]
        stopped = bool(lines) and "stopped" in lines[-1]
        if code == 0 and not stopped:
            return
        if stopped:
            goes_on = lines[-1]["stopped"]
        else:
            stuck = code == -signal.SIGKILL
            reason = f"nothing within {self._options.limit_s} s" if stuck else f"exit status {code}"
            reason += _last_words(ended.part)
            yield {"index": index, "mode": task.mode, "crash": reason, "position": position}
            goes_on = position >= 0 and not stuck
        if rest := task.entries[place + 1 :]:
            waiting.appendleft(replace(task, entries=rest))
        if goes_on:
            waiting.append(replace(task, entries=((index, position + 1),)))


def _without_places(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if "begin" not in line:
            yield {key: value for key, value in line.items() if key != "place"}


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
