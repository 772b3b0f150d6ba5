"""A recording -> the places that ask whether the device is done."""

from __future__ import annotations

from graphdoctor.rules.rule import MEASURED, EventRule
from graphdoctor.values.host_events import Query


class StreamOrEventQuery(EventRule):
    """The step asks whether the device is done.

    `stream.query()` and `event.query()` answer at once, but the question makes no sense while a
    graph is recorded, since nothing runs; CUDA refuses it, and the whole capture with it.

    It is a false alarm only where the question is not asked in production.

    Ask around the step, after the replay. A captured step cannot react to the answer.
    """

    id = "GD109"
    name = "stream-or-event-query"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Ask outside the step, after the replay."
    event = Query
    says = " asks whether the device is done."

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            y = x @ x.T
            torch.cuda.current_stream().query()  # <- GD109
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            y = x @ x.T
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)
