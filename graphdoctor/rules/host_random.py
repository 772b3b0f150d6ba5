"""A recording -> the places where the step draws random numbers on the host."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.differences import differences
from graphdoctor.rules.causes.sources import host_value_hits, source_place
from graphdoctor.rules.causes.words import operator_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.host_events import PythonEvent
from graphdoctor.values.recording import Recording


class HostRandom(RecordingRule):
    """Random numbers are drawn on the host.

    Python's `random` and NumPy's generators are drawn from inside the step. A graph runs no Python:
    whatever the draw decided in the captured step, a number, an index or a branch, every replay
    decides the same.

    It is a false alarm where the number never reaches a tensor or a branch, such as a random name.

    Draw on the device (`torch.rand((), device="cuda")`): a captured generator gives new numbers in
    each replay. Choose between branches with `torch.where`, or draw outside and pass an input
    tensor.
    """

    id = "GD207"
    name = "host-random"
    effect = "replay-is-wrong"
    explains = ("GD201", "GD202", "GD203", "GD209")
    evidence = MEASURED
    fix = 'Draw on the device, torch.rand((), device="cuda"), or before the step, as an input.'

    def check(self, recording: Recording) -> Iterator[Hit]:
        effects = {
            source_place(found.source): operator_words(found.difference.op)
            for found in differences(recording)
            if found.source is not None and found.source.kind == "host-random"
        }

        def message(event: PythonEvent) -> str:
            text = f"{event.name} draws on the host; every replay repeats the draw of the capture"
            reached = effects.get(event.location)
            return f"{text}. It reaches {reached}." if reached else f"{text}."

        yield from host_value_hits(recording, "host-random", message)

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
