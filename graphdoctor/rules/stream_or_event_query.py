"""A recording -> the places that ask whether the device is done."""

from __future__ import annotations

from graphdoctor.rules.rule import MEASURED, EventRule
from graphdoctor.values.host_events import Query


class StreamOrEventQuery(EventRule):
    """The step queries whether the GPU is done.

    `stream.query()`, `event.query()` and `event.elapsed_time()` return at once, but nothing runs during
    capture. CUDA rejects the query, and the capture fails.

    False alarm: the query does not run in production.

    Query outside the step, after the replay. A captured step cannot react to the result.
    """

    id = "GD109"
    name = "stream-or-event-query"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Query outside the step, after the replay."
    event = Query
    says = " queries whether the GPU is done."

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
