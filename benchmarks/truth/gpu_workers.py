"""Questions -> answers from processes that were started afresh, imported everything once and hold CUDA.

A fork cannot be sure to start CUDA. A question goes to a worker as a line of its standard input, and comes back
as a line of the worker's file.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from case_processes import Forks, Line, named

if TYPE_CHECKING:
    from zoo import Case

START_S = 240  # importing every family beside others that do the same
TRIES = 2  # a crash may be the fault of the question before
STARTS = 3  # that fail one after the other


@dataclass(frozen=True)
class Question:
    case: Case
    mode: str
    device: str
    tries: int = 1


@dataclass(eq=False)
class Worker:
    process: subprocess.Popen[str]
    part: Path
    answers: IO[str]
    since: float  # time.monotonic
    question: Question | None = None
    is_ready: bool = False
    text: str = ""

    def ask(self, question: Question) -> None:
        self.question, self.since = question, time.monotonic()
        words = {"model": question.case.model, "family": question.case.family}
        assert self.process.stdin is not None
        text = json.dumps({**words, "mode": question.mode, "device": question.device})
        with suppress(
            BrokenPipeError
        ):  # it died while it waited, which is seen as for any question
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()

    def is_stuck(self, limit_s: float) -> bool:
        is_at_work = self.question is not None or not self.is_ready
        return is_at_work and time.monotonic() - self.since > limit_s

    def heard(self) -> Line | None:
        self.text += self.answers.readline()
        if not self.text.endswith("\n"):
            return None
        text, self.text = self.text, ""
        message: Line = json.loads(text)
        return message

    def end(self) -> None:
        """Kills it: its standard input stays open in forks of this process."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # the driver may hold it a while
            self.process.wait(10)
        self.answers.close()
        self.part.unlink()


class Workers:
    """Asks each question of a worker that is free; one that dies or hangs is replaced."""

    def __init__(
        self,
        questions: list[Question],
        command: list[str],
        *,
        folder: Path,
        limit_s: float,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._waiting, self._count = deque(questions), len(questions)
        self._command, self._environment = command, environment
        self._folder, self._limit_s = folder, limit_s
        self._workers: list[Worker] = []
        self._started = self._failed = 0

    @property
    def processes(self) -> int:
        return len(self._workers)

    @property
    def left(self) -> float:
        """The share of the questions that none has been asked."""
        return len(self._waiting) / max(1, self._count)

    def step(self, places: int) -> Iterator[Line]:
        """Starts and ends workers as places allow, asks those that are free; the answers."""
        for worker in tuple(self._workers):
            if worker in self._workers:
                yield from self._hear(worker)
        for worker in tuple(self._workers):
            if worker.is_ready and worker.question is None:
                if not self._waiting or len(self._workers) > places:
                    self._end(worker)
                else:
                    worker.ask(self._waiting.popleft())
        self.start(places)

    def start(self, places: int) -> None:
        """Starts as many as there are places and questions for."""
        starting = sum(not each.is_ready for each in self._workers)
        while len(self._waiting) > starting and len(self._workers) < places:
            self._start()
            starting += 1

    def stop(self) -> Iterator[Line]:
        """Ends every worker; the answers that came meanwhile. The rest is for another run."""
        self._waiting.clear()
        for worker in tuple(self._workers):
            message = worker.heard() if worker.question else None
            if message and "answer" in message:
                yield self._answer(worker, message)
            self._end(worker)

    def _start(self) -> None:
        self._started += 1
        part = self._folder / f"worker{self._started}.part"
        part.touch()
        with part.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                [*self._command, str(part)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env=self._environment,
            )
        answers = part.open(encoding="utf-8")
        self._workers.append(Worker(process, part, answers, time.monotonic()))

    def _end(self, worker: Worker) -> None:
        worker.end()
        self._workers.remove(worker)

    def _hear(self, worker: Worker) -> Iterator[Line]:
        code = worker.process.poll()  # before its last words are read
        message = worker.heard()
        limit_s = self._limit_s if worker.is_ready else START_S
        if message is not None:
            yield from self._take(worker, message)
        elif code is not None:
            yield from self._lost(worker, _words(code), may_try_again=True)
        elif worker.is_stuck(limit_s):
            yield from self._lost(worker, f"nothing within {limit_s:g} s", may_try_again=False)

    def _take(self, worker: Worker, message: Line) -> Iterator[Line]:
        if "ready" in message:
            worker.is_ready, self._failed = True, 0
        elif "answer" in message:
            yield self._answer(worker, message)
            worker.question = None
            if message["last"]:
                print(f"a GPU worker is replaced: {message['last']}", file=sys.stderr)
                self._end(worker)
        else:
            yield from self._lost(worker, message["no_start"], may_try_again=False)

    def _answer(self, worker: Worker, message: Line) -> Line:
        assert worker.question is not None
        return {**named(worker.question.case), **message["answer"]}

    def _lost(self, worker: Worker, why: str, *, may_try_again: bool) -> Iterator[Line]:
        question = worker.question
        self._end(worker)
        if question is None:
            self._not_started(worker, why)
        elif may_try_again and question.tries < TRIES:
            self._waiting.appendleft(replace(question, tries=question.tries + 1))
        else:
            line = {"mode": question.mode, "device": question.device, "crash": why}
            yield {**named(question.case), **line}

    def _not_started(self, worker: Worker, why: str) -> None:
        self._failed += 1
        if self._failed < STARTS:
            return
        log = worker.part.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        last = log.strip().rpartition("\n")[2][:200]
        print(
            f"CUDA does not start in a process of its own ({why}{': ' * bool(last)}{last}); "
            f"{len(self._waiting)} questions to the GPU are left out.",
            flush=True,
        )
        self._waiting.clear()
        for each in tuple(self._workers):
            if not each.is_ready:
                self._end(each)


def _words(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def side_by_side(forks: Forks, workers: Workers, *, jobs: int, deadline: float) -> Iterator[Line]:
    """Both until they are done, or until `deadline`, a time of `time.monotonic`."""
    pools = (workers, forks)
    while any(each.left or each.processes for each in pools) and time.monotonic() < deadline:
        yield from workers.step(places_of_workers(forks, workers, jobs))
        yield from forks.step(jobs - workers.processes)
        time.sleep(0.02)
    for each in pools:
        yield from each.stop()


def places_of_workers(forks: Forks, workers: Workers, jobs: int) -> int:
    """A third of the places; more, or fewer, where one of the two is behind by a twentieth."""
    if not forks.left:
        return max(1, jobs - forks.processes)
    behind = workers.left - forks.left
    share = 2 if behind > 0.05 else 3 if behind > -0.05 else 5
    return max(1, jobs // share)


def serve(
    part: Path, *, start: Callable[[], None], answer: Callable[[Line], tuple[Line, str]]
) -> None:
    """The worker's side: answers until there are no more questions, or until one has spoilt CUDA.

    `answer` gives the line, and why this process can answer no other, or nothing.
    """
    with part.open("a", encoding="utf-8") as file:

        def say(message: Line) -> None:
            file.write(json.dumps(message) + "\n")
            file.flush()

        try:
            start()
        except Exception as error:
            return say({"no_start": f"{type(error).__name__}: {error}".split("\n")[0][:200]})
        say({"ready": True})
        for text in iter(sys.stdin.readline, ""):
            line, why_last = answer(json.loads(text))
            say({"answer": line, "last": why_last})
            if why_last:
                return None
    return None
