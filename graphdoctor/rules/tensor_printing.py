"""A recording -> the places where a tensor of the device is turned into text."""

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

    `print(t)`, `f"{t}"`, `repr(t)` and a logger's arguments copy the tensor to the host and wait
    for it. CUDA refuses that while a graph is recorded; and a replay runs no Python, so that
    nothing would be printed anyway.

    It is a false alarm only where the text is not made in production.

    Print after the replay, outside the step: what the step returns holds the values of the last
    replay. Format numbers from a copy that the host reads once in a while.
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
            lambda event: f"{event.name} copies the values to the host and waits for them.",
        )
        for read in host_reads(recording):
            if not read.flow.branches and is_formatting(read.op.location):
                message = (
                    f"The host waits for the value of a {tensor_words(read.use)}, to format it."
                )
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
