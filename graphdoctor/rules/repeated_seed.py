"""Finds the calls that set the device generator's seed again before something draws."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.draws import DRAW_ONCE, first_draw
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.host_events import RngState
from graphdoctor.values.recording import Recording


class RepeatedSeed(RecordingRule):
    """The GPU's random generator gets the same seed in every step.

    Eager draws the same numbers in each step. PyTorch captures the call, because the seed does not
    change, but the graph contains only the kernels: a replay continues from the generator's current
    offset and draws new numbers.

    False alarm: new numbers are welcome.

    Draw the numbers that must repeat once, before the step, and keep them in a tensor.
    """

    id = "GD215"
    name = "repeated-seed"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = DRAW_ONCE

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            refused = {each.seed for each in iteration.events_of(RngState) if each.refusal}
            for event in iteration.events_of(RngState):
                if event.seed is not None and event.seed not in refused:  # those are GD110's
                    drawn = first_draw(event, iteration)
                    if drawn:
                        message = (
                            f"{event.name} sets the same seed in every step: {drawn} repeats its "
                            "numbers in eager, and a replay draws new numbers."
                        )
                        yield at_event(iteration.index, event, message)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            torch.manual_seed(0)  # <- GD215
            return x + torch.randn(8, 16, device="cuda")

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        noise = torch.randn(8, 16, device="cuda")

        def step(x):
            return x + noise

        return step, (torch.randn(8, 16, device="cuda"),)
