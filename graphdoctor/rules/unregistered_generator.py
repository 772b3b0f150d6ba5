"""Finds the draws from generators that a graph does not know."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.draws import for_repeated
from graphdoctor.rules.causes.words import operator_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import RngState
from graphdoctor.values.recording import Opaque, Recording


class UnregisteredGenerator(RecordingRule):
    """Random numbers are drawn from a generator other than the default one.

    During capture a generator keeps its state on the GPU, and PyTorch prepares only the default
    generator. A draw from any other generator is rejected: "Attempt to increase offset for a CUDA
    generator not in capture mode".

    False alarm: the capturing code registers the generator with its graph.

    Draw from the default generator, or call `graph.register_generator_state(generator)` before the
    capture.
    """

    id = "GD115"
    name = "unregistered-generator"
    effect = "capture-fails"
    evidence = MEASURED
    fix = (
        "Draw from the default generator, or register yours before the capture: "
        "graph.register_generator_state(generator)."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for op in iteration.ops:
                if op.is_cuda and dict(op.kwargs).get("generator") == Opaque("generator"):
                    # What draws the same numbers as a generator that the step seeds again before this operator.
                    seeding = [
                        each
                        for each in iteration.events_of(RngState)
                        if each.op_index <= op.index
                        and each.name == "torch.Generator.manual_seed()"
                    ]
                    fix = for_repeated(seeding[-1], iteration, recording) if seeding else ""
                    yield at_op(
                        iteration.index,
                        op,
                        f"{operator_words(op)} draws from a generator that is not registered with the graph.",
                        cure=Cure(fix),
                    )

    @staticmethod
    def bad() -> object:
        import torch

        generator = torch.Generator(device="cuda")

        def step(x):
            noise = torch.rand(x.shape, device="cuda", generator=generator)  # <- GD115
            return x + noise

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            noise = torch.rand(x.shape, device="cuda")
            return x + noise

        return step, (torch.randn(8, 16, device="cuda"),)
