"""Runs a program, as it is or with other text for its files, for what it prints and the weights that it leaves.

It runs in a process of its own, from the same seeds, until its optimizers have stepped so often or its time is over.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

from graphdoctor.device.open import open_device
from graphdoctor.device.processes.process import FreshProcesses, fresh_processes
from graphdoctor.device.processes.thrift import give_memory_back
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.graphs.calls.tally import (
    NEEDS_GRADIENTS,
    WARMUP_CALLS,
    Tallied,
    around_steps,
    kept_tallies,
)
from graphdoctor.graphs.capturable import make_capturable
from graphdoctor.measure.watch.profiler import around, replaced
from graphdoctor.proof.twins import deterministic_algorithms
from graphdoctor.target.program.launch import Program, ThreadEnding, run_program
from graphdoctor.values.options import DeviceChoice

MOST_STEPS = 50  # of optimizers: by then what a graph gets wrong has reached the weights
MOST_STEPS_ON_GPU = 400  # where they are quick, and their time is wanted
_FIRST_TIMED = 20  # steps; before, there are captures and caches to fill
_FEWEST_TIMED = 20
_ENOUGH_CALLS = 10  # of a captured step, by which one is replayed where two are alike
Optimizers = Literal["as they are", "capturable", "captured", "nudged"]
_MOST_BYTES = 256 << 20  # of weights, that are handed from one process to another


@dataclass(frozen=True, slots=True)
class Task:
    """A run of a program in a folder, with other text for some files.

    It ends after `most_steps` of its first optimizer, if there are so many, and with the first one after
    `enough_s` seconds. `optimizers`: "capturable" ones compute with the kernels that a captured step uses, and
    "captured" ones also read the learning rate from a tensor after the first steps, as `graphdoctor.capture` has
    them; each step of "nudged" ones moves the weights by one unit in the last place more, which shows what rounding
    alone does to the program's results. `in_one_order`: with torch's deterministic algorithms.
    """

    program: Program
    folder: str
    device: DeviceChoice
    gpu: str
    most_steps: int
    enough_s: float = float("inf")
    sources: Mapping[str, str] = field(default_factory=dict)
    optimizers: Optimizers = "as they are"
    in_one_order: bool = False


class Calls(NamedTuple):
    """How many calls were replayed and how many eager, and the reason of most of these."""

    replayed: int
    eager: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended. `weights` are those of its optimizers, in order, or None where they are too many.

    `failure` is how it failed, in one line; "" where it did not. `has_ended` is False where its time
    was over, and `was_stopped` True where it had taken as many steps as it should. So many lines were printed before
    the first step as `lines_before` says. `replays` counts calls of captured models that a graph answered, and
    replays of the program's own graphs with optimizer steps in them; `mostly_eager` has what was captured and ran
    eagerly in most calls after its capture.
    `step_us` is the wall time from one optimizer step to the next, with all that the program does
    between them, over those after the first twenty; None without a GPU, and for too few. `late_step_us` is the same
    over the second half of the steps that were asked for, after the captures.
    """

    printed: str
    has_ended: bool
    exit_code: int = 0
    failure: str = ""
    was_stopped: bool = False
    steps: int = 0
    lines_before: int = 0
    weights: tuple[torch.Tensor, ...] | None = ()
    replays: int = 0
    mostly_eager: Mapping[str, Calls] = field(default_factory=dict)
    step_us: float | None = None
    late_step_us: float | None = None


@contextmanager
def reruns(time_limit_s: float) -> Iterator[Callable[[Task], Run]]:
    """A function that runs a task in a process of its own."""
    give_memory_back()  # what the diagnosis has freed
    with fresh_processes(__name__) as processes, tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")

        def run(task: Task) -> Run:
            printed.write_bytes(b"")
            return _run(processes, task, printed, time_limit_s)

        yield run


def _run(processes: FreshProcesses, task: Task, file: Path, time_limit_s: float) -> Run:
    job = pickle.dumps((task, str(file)))
    ended = processes.run(job, time_limit_s=time_limit_s, is_last=True)
    printed = file.read_text(encoding="utf-8", errors="replace")
    if ended.result is None:
        is_late = ended.code is None
        failure = "" if is_late else ": ".join(filter(None, (ended.reason, ended.last_words)))
        return Run(printed, has_ended=False, failure=failure)
    found: dict[str, Any] = pickle.loads(ended.result)
    return Run(printed, has_ended=True, **found)


def do(job: bytes) -> bytes:
    """In the process: a task from the private folder that the parent made -> how its run ended."""
    task: Task
    task, printed = pickle.loads(job)
    os.chdir(task.folder)
    os.dup2(os.open(printed, os.O_WRONLY | os.O_TRUNC), 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.path.insert(0, "")  # in whose place the program's folder comes
    counted = _Counted(task, Path(printed))
    _seed()
    with ExitStack() as stack:
        device = stack.enter_context(open_device(task.device, load_profile(task.gpu)))
        if task.in_one_order:
            stack.enter_context(deterministic_algorithms())
        stack.enter_context(_counting(counted))
        models = stack.enter_context(kept_tallies())
        ended = run_program(task.program, lambda: counted.is_over, sources=task.sources)
        replays = counted.replays + sum(model.replayed for model in models)
        made = {
            "exit_code": ended.exit_code,
            "failure": _error_in(ended.text, task.sources) if ended.ending == "raised" else "",
            "was_stopped": counted.is_over,
            "steps": counted.steps,
            "lines_before": counted.lines_before,
            "weights": counted.weights(),
            "replays": replays,
            "step_us": counted.step_us() if device.kind == "cuda" else None,
            "late_step_us": counted.step_us(late=True) if device.kind == "cuda" else None,
            "mostly_eager": _mostly_eager(models, counted.calls),
        }
    sys.stdout.flush()
    return pickle.dumps(made)


def _seed() -> None:
    """Give the same numbers to each run, also from NumPy's generators that the program makes without a seed.

    Gymnasium makes one for each environment, and NumPy takes its seed from the operating system.
    """
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    np.random.bit_generator.randbits = random.Random(0).getrandbits  # type: ignore[attr-defined]


def _error_in(traceback: str, files: Container[str]) -> str:
    """The line that names the error, below which its message may go on, and the last two lines of the files."""
    lines = traceback.strip().split("\n")
    named = (line for line in reversed(lines) if re.match(r"[A-Za-z_][\w.]*(: |$)", line))
    frames = re.findall(r'^  File "(.+)", line (\d+)', traceback, re.MULTILINE)
    places = [f"{os.path.basename(file)}:{line}" for file, line in frames if file in files]
    where = ", called at ".join(reversed(places[-2:]))
    return next(named, lines[-1]) + (f" ({where})" if where else "")


def _mostly_eager(captured: Iterable[Tallied], calls: Mapping[str, int]) -> dict[str, Calls]:
    """By name what was replayed in less than half of its calls; nothing that had only its first calls, which are eager.

    A model that is captured for inference runs eagerly where the program trains it.
    """
    replayed, reasons = Counter[str](), dict[str, Counter[str]]()
    for each in captured:
        replayed[each.name] += each.replayed
        reasons.setdefault(each.name, Counter()).update(each.fallbacks())
        if calls.get(each.name, 0) >= _ENOUGH_CALLS and not reasons[each.name]:
            reasons[each.name][f"each of its {calls[each.name]} calls had another signature."] = 1
    found: dict[str, Calls] = {}
    for name, eager in reasons.items():
        if replayed[name]:
            del eager[NEEDS_GRADIENTS]
        if eager.total() > replayed[name]:
            found[name] = Calls(replayed[name], eager.total(), max(eager, key=eager.__getitem__))
    return found


class _Mark(NamedTuple):
    """When so many steps were made."""

    steps: int
    at_s: float


_Form = tuple[int, tuple[bool, ...]]  # a captured step, and the flags that it gets


class _Counted:
    """The optimizers that stepped, in the order in which they first did; steps are those of the first.

    The run ends where that one is about to step once more, or a captured step that makes it step is called: the
    program as it is and with captured steps stands at the same place then. A replay of a graph that the program
    itself captured makes the steps that were captured in it.
    """

    def __init__(self, task: Task, printed: Path) -> None:
        self.steps = self.replays = 0
        self.lines_before = 0  # that were printed before the first step
        self._printed = printed
        self.calls = Counter[str]()  # of captured steps, by name
        self.is_over = False
        self._task = task
        self._ends_at_s = time.monotonic() + task.enough_s
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._made = Counter[int]()  # steps, by optimizer
        self._rates: list[tuple[dict[str, Any], float]] = []  # of groups, while they are tensors
        self._ending = ThreadEnding()
        self._timed_from: _Mark | None = None
        self._late_from: _Mark | None = None
        self._timed_to_s = 0.0
        self._inside = -1  # steps in the call of a captured step that runs now; -1: none does
        self._of_call: dict[_Form, int] = {}  # steps that a call makes
        self._is_of_first: dict[_Form, bool] = {}  # whether its last eager call made one
        self._captured: object = None  # the program's own graph that is captured now
        self._of_graph: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # steps of a replay

    def steps_now(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer is about to step."""
        kind = self._task.optimizers
        if kind in ("capturable", "captured") and id(optimizer) not in self._optimizers:
            make_capturable(optimizer)
        if not self._made:
            self.lines_before = self._printed.read_bytes().count(b"\n")
        self._made[id(optimizer)] += 1
        if kind == "captured" and self._made[id(optimizer)] > WARMUP_CALLS:
            for group in optimizer.param_groups:
                if isinstance(group.get("lr"), (int, float)) and group.get("fused"):
                    self._rates.append((group, group["lr"]))
                    group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
        if self._inside >= 0 or self._captured is not None:
            return
        if not self._optimizers or self._is_first(optimizer):
            self._begin()

    def stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer has stepped."""
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates.clear()
        if self._task.optimizers == "nudged":
            _nudge(optimizer, upwards=self._made[id(optimizer)] % 2 == 1)
        self._optimizers.setdefault(id(optimizer), optimizer)
        if not self._is_first(optimizer):
            return
        if self._captured is not None:
            self._of_graph[self._captured] = self._of_graph.get(self._captured, 0) + 1
        elif self._inside < 0:
            self._add(1)
        else:
            self._inside += 1

    def around(self, step: Tallied, flags: tuple[bool, ...], call: Callable[[], object]) -> object:
        """Make a call of a captured step. The first one runs eagerly, and shows how many steps a replay makes.

        With another flag it may make none, where gradients are accumulated. One function may step the optimizer of
        one layer after another: whether it is the first optimizer's is what its last eager call did.
        """
        self.calls[step.name] += 1
        form = id(step), flags
        if self._of_call.get(form, 0):
            self._begin()
        self._inside, replayed = 0, step.replayed
        try:
            return call()
        finally:
            steps, self._inside = self._inside, -1
            most = self._of_call.setdefault(form, steps)
            if step.replayed == replayed:
                self._is_of_first[form] = steps > 0
            if most and self._is_of_first.get(form, False):
                self._add(most)

    def capture_begin(
        self, method: Callable[..., object], graph: object, *args: Any, **kwargs: Any
    ) -> None:
        method(graph, *args, **kwargs)
        if self._inside < 0:
            self._captured = graph
            self._of_graph.pop(graph, None)

    def capture_end(self, method: Callable[..., object], graph: object) -> None:
        try:
            method(graph)
        finally:
            self._captured = None

    def replay(self, method: Callable[..., object], graph: object) -> object:
        steps = self._of_graph.get(graph, 0)
        if not steps:
            return method(graph)
        self._begin()
        result = method(graph)
        self.replays += 1
        self._add(steps)
        return result

    def _is_first(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer is next(iter(self._optimizers.values()), None)

    def _begin(self) -> None:
        if self.steps >= self._task.most_steps or time.monotonic() > self._ends_at_s:
            if not self.is_over and self._timed_from:
                self._timed_to_s = _now_s()
            self.is_over = True
            self._ending.end()

    def _add(self, steps: int) -> None:
        self.steps += steps
        if self.steps >= _FIRST_TIMED and not self._timed_from:
            self._timed_from = _Mark(self.steps, _now_s())
        if self.steps >= self._task.most_steps // 2 and not self._late_from:
            self._late_from = _Mark(self.steps, _now_s())

    def step_us(self, *, late: bool = False) -> float | None:
        begin = self._late_from if late else self._timed_from
        if begin is None or self.steps - begin.steps < _FEWEST_TIMED:
            return None
        return 1e6 * ((self._timed_to_s or _now_s()) - begin.at_s) / (self.steps - begin.steps)

    def weights(self) -> tuple[torch.Tensor, ...] | None:
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        held = [parameter.detach() for group in groups for parameter in group["params"]]
        if sum(each.numel() * each.element_size() for each in held) > _MOST_BYTES:
            return None
        return tuple(each.cpu().clone() for each in held)


def _nudge(optimizer: torch.optim.Optimizer, *, upwards: bool) -> None:
    """Move each weight by about one unit in the last place, every second one the other way; draws no random numbers.

    Autograd counts no write: a program may run another backward pass through the weights that fused kernels changed.
    """
    with torch.no_grad():
        for group in optimizer.param_groups:
            for weight in (parameter.data for parameter in group["params"]):
                if weight.is_floating_point():
                    eps = torch.finfo(weight.dtype).eps * (1.0 if upwards else -1.0)
                    sign = 1.0 - 2.0 * (torch.arange(weight.numel(), device=weight.device) % 2)
                    weight.mul_((1.0 + eps * sign).view(weight.shape).to(weight.dtype))


def _now_s() -> float:
    """When all that was launched has run."""
    torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def _counting(counted: _Counted) -> Iterator[None]:
    hooks = (
        torch_optimizer.register_optimizer_step_pre_hook(counted.steps_now),
        torch_optimizer.register_optimizer_step_post_hook(counted.stepped),
    )
    try:
        with around_steps(counted.around), _graphs_counted(counted):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _graphs_counted(counted: _Counted) -> AbstractContextManager[None]:
    """In the block, `counted` hears of captures and replays, on a GPU and on the emulated device."""
    graphs: Any = torch.cuda.CUDAGraph
    methods = {
        name: around(getattr(graphs, name), getattr(counted, name))
        for name in ("capture_begin", "capture_end", "replay")
    }
    return replaced(graphs, methods)
