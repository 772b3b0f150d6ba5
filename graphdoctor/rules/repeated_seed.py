"""A recording -> the calls that set the device generator's seed again before something draws."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import draws
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.host_events import RngState
from graphdoctor.values.recording import Iteration, Recording

_SEEDING = ("manual_seed()", "manual_seed_all()")


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
    fix = "Draw the numbers that must repeat once, before the step, and keep them in a tensor."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for event in iteration.events_of(RngState):
                if not event.refusal and _seeds(event):  # GD110 reports a refused one
                    drawn = _draws_after(event, iteration)
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


def _seeds(event: RngState) -> bool:
    return event.name.endswith(_SEEDING)


def _draws_after(event: RngState, iteration: Iteration) -> str:
    """The first operator on the device that draws after the call; "" if none does."""
    for op in iteration.ops[event.op_index :]:
        if op.is_cuda and draws(op):
            return op.name.rpartition(".")[0]
    return ""
