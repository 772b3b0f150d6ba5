"""Finds the CPU scalars whose changing value a device operator takes."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import host_learns
from graphdoctor.rules.causes.cpu_data import Steering, steering_values
from graphdoctor.rules.causes.numbers import POSITIONS, for_position
from graphdoctor.rules.causes.words import operator_words, tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class FrozenCpuScalar(RecordingRule):
    """A GPU operator takes its scalar from a CPU tensor that changes.

    A GPU operator accepts a 0-d CPU tensor: PyTorch reads its value and passes it to the kernel as an
    argument. Kernel arguments are frozen at capture, so replays ignore later changes of the CPU tensor.

    CPU tensors that never change are not reported, because their captured value stays valid.

    Keep the tensor on the GPU: `register_buffer("scale", torch.tensor(1.0, device="cuda"))`. The kernel
    then reads the tensor's memory in each replay.
    """

    id = "GD211"
    name = "frozen-cpu-scalar"
    effect = "replay-is-wrong"
    explains = ("GD203",)
    evidence = MEASURED
    fix = "Keep the 0-d tensor on the GPU, for example as a buffer that moves with the module."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for steering in steering_values(recording):
            changes = steering.origin.kind in ("state", "input", "python")
            if steering.use.shape and steering.at.fallback is not None:
                continue  # a GPU refuses the operator in eager already
            if changes and host_learns(steering.at) != "value" and steering.at.phase != "optimizer":
                yield at_op(
                    steering.iteration, steering.at, _message(steering), cure=Cure(_fix(steering))
                )

    @staticmethod
    def bad() -> object:
        import torch

        temperature = torch.ones(())

        def step(x):
            temperature.mul_(0.5)
            return x / temperature  # <- GD211

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        temperature = torch.ones((), device="cuda")

        def step(x):
            temperature.mul_(0.5)
            return x / temperature

        return step, (torch.randn(8, 16, device="cuda"),)


def _fix(steering: Steering) -> str:
    """For an element that is taken by a changing position, or a tensor of the caller."""
    origin = steering.origin
    if origin.op is not None and origin.op.base_name in POSITIONS:
        return f"Keep the indexed tensor on the GPU. {for_position(origin.op)}"
    return f"Pass {origin.name} on the GPU." if origin.kind == "input" and origin.name else ""


def _message(steering: Steering) -> str:
    whose = f"{steering.origin.name}, " if steering.origin.name else ""
    return (
        f"{operator_words(steering.at)} takes its scalar from {whose}a {tensor_words(steering.use)} "
        "on the CPU that changes. The value is frozen at capture."
    )
