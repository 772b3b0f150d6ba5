"""A program, as it is or with other text for its files -> what it prints and the weights that it leaves.

It runs in a process of its own, from the same seeds, until its optimizers have stepped so often or its time is over.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

from graphdoctor.device.open import open_device
from graphdoctor.device.processes.fresh import FreshProcesses, fresh_processes
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.graphs.calls.tally import kept_tallies
from graphdoctor.target.program.ending import Ending
from graphdoctor.target.program.launch import Program, run_program
from graphdoctor.values.options import DeviceChoice

MOST_STEPS = 50  # of optimizers: by then what a graph gets wrong has reached the weights
_MOST_BYTES = 256 << 20  # of weights, that are handed from one process to another


@dataclass(frozen=True, slots=True)
class Task:
    """A run of a program in a folder, with other text for some files. It prints into a file."""

    program: Program
    folder: str
    sources: Mapping[str, str]
    device: DeviceChoice
    gpu: str
    printed: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended. `weights` are those of its optimizers, in order, or None where they are too many.

    `failure` is how it failed, in one line; "" where it did not. `has_ended` is False where its time
    was over. `replays` counts calls of captured models that a graph answered, `fallbacks` why others
    were not, and how often.
    """

    printed: str
    has_ended: bool
    exit_code: int = 0
    failure: str = ""
    steps: int = 0
    weights: tuple[torch.Tensor, ...] | None = ()
    replays: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)


def runs_of(*tasks: Task, time_limit_s: float) -> Generator[Run, None, None]:
    """Each in a process of its own, when it is asked for."""
    with fresh_processes(__name__) as processes, tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(tasks):
            file = Path(folder, str(number))
            file.touch()
            own = Task(one.program, one.folder, one.sources, one.device, one.gpu, str(file))
            yield _run(processes, own, time_limit_s, is_last=number > 0)


def _run(processes: FreshProcesses, task: Task, time_limit_s: float, *, is_last: bool) -> Run:
    ended = processes.run(pickle.dumps(task), time_limit_s=time_limit_s, is_last=is_last)
    printed = Path(task.printed).read_text(encoding="utf-8", errors="replace")
    if ended.result is None:
        is_late = ended.code is None
        failure = "" if is_late else ": ".join(filter(None, (ended.reason, ended.last_words)))
        return Run(printed, has_ended=False, failure=failure)
    found: dict[str, Any] = pickle.loads(ended.result)
    return Run(printed, has_ended=True, **found)


def do(job: bytes) -> bytes:
    """In the process: a task from the private folder that the parent made -> how its run ended."""
    task: Task = pickle.loads(job)
    os.chdir(task.folder)
    os.dup2(os.open(task.printed, os.O_WRONLY | os.O_TRUNC), 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.path.insert(0, "")  # in whose place the program's folder comes
    counted = _Counted()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with ExitStack() as stack:
        stack.enter_context(open_device(task.device, load_profile(task.gpu)))
        stack.enter_context(_counting(counted))
        models = stack.enter_context(kept_tallies())
        ended = run_program(task.program, lambda: counted.is_over, sources=task.sources)
        made = {
            "exit_code": ended.exit_code,
            "failure": ended.text.strip().rpartition("\n")[2] if ended.ending == "raised" else "",
            "steps": counted.steps,
            "weights": counted.weights(),
            "replays": sum(model.replayed for model in models),
            "fallbacks": dict(sum((model.fallbacks() for model in models), start=Counter())),
        }
    sys.stdout.flush()
    return pickle.dumps(made)


class _Counted:
    """The optimizers that stepped, in the order in which they first did."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_over = False
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._ending = Ending()

    def stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._optimizers.setdefault(id(optimizer), optimizer)
        self.steps += 1
        if self.steps >= MOST_STEPS:
            self.is_over = True
            self._ending.end()

    def weights(self) -> tuple[torch.Tensor, ...] | None:
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        held = [parameter.detach() for group in groups for parameter in group["params"]]
        if sum(each.numel() * each.element_size() for each in held) > _MOST_BYTES:
            return None
        return tuple(each.cpu().clone() for each in held)


@contextmanager
def _counting(counted: _Counted) -> Iterator[None]:
    hook = torch_optimizer.register_optimizer_step_post_hook(counted.stepped)
    try:
        yield
    finally:
        hook.remove()
