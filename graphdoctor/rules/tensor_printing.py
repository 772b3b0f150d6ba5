"""Finds the places where a tensor of the device is turned into text."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.reads import host_reads
from graphdoctor.rules.causes.source import is_formatting
from graphdoctor.rules.causes.words import tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op, event_hits
from graphdoctor.values.host_events import TensorRepr
from graphdoctor.values.recording import Recording


class TensorPrinting(RecordingRule):
    """A tensor is printed or formatted inside the step.

    `print(t)`, `f"{t}"`, `repr(t)` and a logger's arguments copy the tensor to the CPU and wait for the
    copy. CUDA rejects that host sync during capture. A replay runs no Python and prints nothing.

    False alarm: the text is not formatted in production.

    Print outside the step, after the replay: the returned tensors contain the values of the last
    replay. Copy to the CPU only now and then.
    """

    id = "GD102"
    name = "tensor-printing"
    effect = "capture-fails"
    explains = ("GD101", "GD103")
    makes_host_wait = True
    evidence = MEASURED
    fix = "Return the tensor from the step, and print it outside, after the replay."

    def check(self, recording: Recording) -> Iterator[Hit]:
        yield from event_hits(
            recording,
            TensorRepr,
            lambda event: f"{event.name} copies the values to the CPU, which is a host sync.",
        )
        for read in host_reads(recording):
            if not read.flow.branches and is_formatting(read.op.location):
                message = f"Formatting a {tensor_words(read.use)} is a host sync: the CPU waits for its value."
                yield at_op(read.iteration, read.op, message)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            loss = x.square().mean()
            text = f"loss {loss}"  # <- GD102
            return loss, text

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            loss = x.square().mean()
            return loss, ""

        return step, (torch.randn(8, 16, device="cuda"),)
