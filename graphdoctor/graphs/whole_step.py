"""Capture the whole step of a target as one CUDA graph, or say why the capture was refused."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from graphdoctor.device.observe.earlier_graphs import drop_unreachable_accumulations
from graphdoctor.graphs.capture import Pool, record_graph, run_on, stream_for_capture
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.static_inputs import StaticInputs
from graphdoctor.record.session import WARM_UPS, Session
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, snapshot
from graphdoctor.target.state.tree import map_leaves
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import user_code
from graphdoctor.values.captures import WHOLE_STEP, CaptureOutcome, Verification


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

    def call(self, inputs: Inputs) -> object:
        """One step, as a caller makes it; the next one writes over what it gives."""
        self.load(inputs)
        self.replay()
        return self.outputs

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


def capture_from_start(
    session: Session,
    step: Callable[..., object] | None = None,
    *,
    pool: Pool | None = None,
    is_warm: bool = True,
) -> CapturedStep | Refusal:
    """Capture the session's step, or `step` in its place, from the state that the session starts in.

    A real device warms up on the stream of the capture, as torch requires, unless the session ran this very step there.
    It does so, too, where other kernels run now than then, and the step is not `is_warm`: cuDNN looks for the fastest
    one in the first call of each, which a capture forbids.
    """
    target = session.target if step is None else replace(session.target, step=step)
    session.start.restore()
    warmup = 0
    if session.device.kind != "emulated":
        side: Any = stream_for_capture() if pool is None else pool.side
        if step is None and side == torch.cuda.current_stream():
            drop_unreachable_accumulations(target.roots)
            warmup = 0 if is_warm else WARM_UPS
        else:
            warmup = WARM_UPS
    return capture_whole_step(target, warmup=warmup, now=session.start, pool=pool)


def capture_whole_step(
    target: Target, *, warmup: int = 3, now: Snapshot | None = None, pool: Pool | None = None
) -> CapturedStep | Refusal:
    """Warm up `warmup` times on a side stream, then capture one step on it, into `pool` or its own.

    Works on the current CUDA device, real or emulated. The target's state is afterwards what it was
    before, bit for bit; `now` is that state, where a snapshot of it exists, to save a copy of the
    model's memory. Raises `UserCodeError` where the step fails before the capture begins.
    """
    before = now if now is not None else snapshot(target.roots)
    try:
        side: Any = stream_for_capture() if pool is None else pool.side
        warm_up(target, side, warmup)
        if target.is_warm:
            before.restore()  # its inputs fit this state, and a cache may be nearly full
        start = before if target.is_warm or warmup == 0 else snapshot(target.roots)
        return _capture(target, side, start, pool)
    finally:
        before.restore()


def warm_up(target: Target, side: Any, times: int) -> None:
    """Let lazy initialisation happen on the stream of the capture, each time with new inputs."""

    def run() -> None:
        for _ in range(times):
            inputs = fresh_inputs(target)
            with user_code("the step"):
                target.step(*inputs.args, **inputs.kwargs)

    if times:
        # Autograd's nodes of earlier steps that only a cycle keeps alive would go on accumulating
        # gradients on the default stream, which no capture may depend on.
        gc.collect()
    run_on(side, run)


def fresh_inputs(target: Target) -> Inputs:
    """New inputs on memory of their own; state that is passed in stays itself."""
    with user_code("making inputs"):
        inputs = target.fresh_inputs()
    return clone_inputs(inputs, kept=memory_of(named_tensors(target.roots).values()))


def _capture(
    target: Target, side: Any, start: Snapshot, pool: Pool | None
) -> CapturedStep | Refusal:
    static = fresh_inputs(target)
    made = record_graph(lambda: target.step(*static.args, **static.kwargs), side, pool=pool)
    if isinstance(made, Refusal):
        return made
    if made.is_empty:
        made.graph.reset()
        return Refusal("the step runs nothing on the GPU, so there is nothing to capture")
    # Outputs that still hang on autograd would keep its nodes, and their stream, alive.
    outputs = detached(made.result)
    seen = footprint(target.roots, static, outputs)
    return CapturedStep(made.graph, static, outputs, seen, start)


def detached(outputs: object) -> object:
    """A tensor that is returned twice is one tensor afterwards too, as in what eager returns.

    An object in which nothing requires gradients, such as a cache, stays the very object.
    """

    def cut(leaf: object) -> object:
        is_cut = isinstance(leaf, torch.Tensor) and leaf.requires_grad
        return leaf.detach() if is_cut else leaf  # type: ignore[attr-defined]

    return map_leaves(cut, outputs)
