"""Finds the places where the step draws random numbers on the host."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.differences import differences
from graphdoctor.rules.causes.draws import for_draw
from graphdoctor.rules.causes.reads import host_value_hits, source_place
from graphdoctor.rules.causes.words import operator_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.host_events import RandomDraw
from graphdoctor.values.recording import Recording


class HostRandom(RecordingRule):
    """Random numbers are drawn on the CPU.

    The step draws from Python's `random` or from a NumPy generator. A graph runs no Python: a number,
    an index or a branch that the draw selects is frozen at capture, and every replay repeats it.

    False alarm: the number reaches no tensor and no branch, for example a random file name.

    Draw on the GPU (`torch.rand((), device="cuda")`): a captured generator returns new numbers in each
    replay. Select with `torch.where`, or draw outside the step and pass an input tensor.
    """

    id = "GD207"
    name = "host-random"
    effect = "replay-is-wrong"
    explains = ("GD201", "GD202", "GD203", "GD209")
    evidence = MEASURED
    fix = 'Draw on the GPU, torch.rand((), device="cuda"), or before the step, as an input.'

    def check(self, recording: Recording) -> Iterator[Hit]:
        effects = {
            source_place(found.source): found.difference
            for found in differences(recording)
            if found.source is not None and found.source.kind is RandomDraw
        }

        def message(event: RandomDraw) -> str:
            text = f"{event.name} draws on the CPU, and the drawn value is frozen at capture"
            reached = effects.get(event.location)
            return (
                f"{text}. The value reaches {operator_words(reached.op)}."
                if reached
                else f"{text}."
            )

        def fix(event: RandomDraw) -> str:
            return for_draw(event, effects.get(event.location))

        yield from host_value_hits(recording, RandomDraw, message, fix)

    @staticmethod
    def bad() -> object:
        import random

        import torch

        def step(x):
            noise = random.random()  # <- GD207
            return x + noise

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            noise = torch.rand((), device=x.device)
            return x + noise

        return step, (torch.randn(8, 16, device="cuda"),)
