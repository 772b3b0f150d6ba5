"""A target -> its whole step as one CUDA graph, or the reason why the capture was refused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.graphs.cause import in_words, location_of, true_cause
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.static_inputs import StaticInputs
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, snapshot
from graphdoctor.target.state.tree import map_leaves
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.report import WHOLE_STEP, CaptureOutcome, Location, Verification


@dataclass(frozen=True, slots=True)
class Refusal:
    """A capture that did not come about: the first cause in words, and the user's line."""

    reason: str
    location: Location | None

    def outcome(self) -> CaptureOutcome:
        return CaptureOutcome(
            scope=str(WHOLE_STEP), status="refused", reason=self.reason, location=self.location
        )


class CapturedStep:
    """A step as a graph, with the tensors that it reads and fills.

    `start` is the state that the capture was made from: the target's after its warm-up, when lazily
    made state such as momentum buffers is there. `footprint` names the tensors that every replay
    fills. Keeps all of them alive until `release`.
    """

    def __init__(
        self, graph: Any, static_inputs: Inputs, outputs: object, seen: Footprint, start: Snapshot
    ) -> None:
        self.graph = graph
        self.static_inputs = static_inputs
        self._static = StaticInputs(static_inputs)
        self.outputs = outputs
        self.footprint = seen
        self.start = start

    @property
    def operators(self) -> int:
        """How many operators were captured; 0 where the graph does not tell."""
        return int(getattr(self.graph, "operators", 0))

    def load(self, inputs: Inputs) -> None:
        """Copy fresh values into the static inputs.

        Raises `InputMismatch` where anything else than values of tensors is new.
        """
        self._static.load(inputs)

    def replay(self) -> None:
        """Run the graph once, on what is in the static inputs and in the state now."""
        self.graph.replay()

    def release(self) -> None:
        """Give the graph and its memory back; the captured step cannot be used any more."""
        self.graph.reset()
        self.outputs = None
        self.footprint = Footprint({}, {}, {})

    def outcome(self, verification: Verification | None = None) -> CaptureOutcome:
        return CaptureOutcome(
            scope=str(WHOLE_STEP),
            status="captured",
            operators=self.operators,
            verification=verification,
        )


def capture_whole_step(
    target: Target, *, warmup: int = 3, now: Snapshot | None = None
) -> CapturedStep | Refusal:
    """Warm up `warmup` times on a side stream, then capture one step on it.

    Works on the current CUDA device, real or emulated. The target's state is afterwards what it was
    before, bit for bit; `now` is that state, where a snapshot of it exists, to save a copy of the
    model's memory. Raises `UserCodeError` where the step fails before the capture begins.
    """
    before = now if now is not None else snapshot(target.roots)
    try:
        side: Any = torch.cuda.Stream()
        warm_up(target, side, warmup)
        return _capture(target, side, before if warmup == 0 else snapshot(target.roots))
    finally:
        before.restore()


def warm_up(target: Target, side: Any, times: int) -> None:
    """Let lazy initialisation happen on the stream of the capture, each time with new inputs."""
    if times:
        # Autograd's nodes of earlier steps that only a cycle keeps alive would go on accumulating
        # gradients on the default stream, which no capture may depend on.
        gc.collect()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            _run(target, fresh_inputs(target))
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def fresh_inputs(target: Target) -> Inputs:
    """New inputs on memory of their own; state that is passed in stays itself."""
    with user_code("making inputs"):
        inputs = target.fresh_inputs()
    return clone_inputs(inputs, kept=memory_of(named_tensors(target.roots).values()))


def _run(target: Target, inputs: Inputs) -> None:
    with user_code("the step"):
        target.step(*inputs.args, **inputs.kwargs)


def _capture(target: Target, side: Any, start: Snapshot) -> CapturedStep | Refusal:
    static = fresh_inputs(target)
    graph: Any = torch.cuda.CUDAGraph()
    try:
        with (
            device_usable_after_failure(graph),
            torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
        ):
            outputs = target.step(*static.args, **static.kwargs)
    except (GraphDoctorError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        cause = true_cause(error)
        return Refusal(in_words(cause), location_of(cause))
    if getattr(graph, "operators", None) == 0:
        return Refusal("the step runs nothing on the GPU, so there is nothing to capture", None)
    # Outputs that still hang on autograd would keep its nodes, and their stream, alive.
    outputs = detached(outputs)
    return CapturedStep(graph, static, outputs, footprint(target.roots, static, outputs), start)


def detached(outputs: object) -> object:
    """A tensor that is returned twice is one tensor afterwards too, as in what eager returns."""
    made: dict[int, torch.Tensor] = {}

    def detach(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = leaf.detach()
        return made[id(leaf)]

    return map_leaves(detach, outputs)


@contextmanager
def device_usable_after_failure(graph: Any) -> Iterator[None]:
    """After a failed capture, put back what torch leaves behind: stream, pool and generators.

    `torch.cuda.graph` stays on its stream when ending the capture raises. Before torch 2.13 the
    default generator stays in capture mode too (pytorch#171263).
    """
    stream = torch.cuda.current_stream()
    generators = [(g, g.clone_state()) for g in _cuda_generators()]
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)
        for repair in (graph.reset, torch.cuda.synchronize, torch.cuda.empty_cache):
            with suppress(RuntimeError):
                repair()
        for generator, state in generators:
            with suppress(RuntimeError):
                generator.graphsafe_set_state(state)
        raise


def _cuda_generators() -> list[Any]:
    """The real device's generators, of a torch that can exchange their state."""
    found: list[Any] = list(getattr(torch.cuda, "default_generators", ()))
    return [g for g in found if g.device.type == "cuda" and hasattr(g, "clone_state")]
