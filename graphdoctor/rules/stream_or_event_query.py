"""Finds the places that query whether the device is done."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.rule import MEASURED, EventRule, Hit
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import Query
from graphdoctor.values.recording import Recording

# By the beginning of the call's name.
_FIXES = {
    "torch.cuda.Event.": (
        "Record the events and query them outside the step, around the replay: CUDA rejects the query of an event"
        " that a graph records."
    ),
    "Work.wait()": "Unset TORCH_NCCL_BLOCKING_WAIT: `work.wait()` then orders the streams, and the CPU does not wait.",
    "Work.": "Call `work.wait()` instead, which orders the streams: a capture takes it.",
}


class StreamOrEventQuery(EventRule):
    """The step queries whether the GPU is done.

    `stream.query()`, `event.query()` and `event.elapsed_time()` return at once, but nothing runs during
    capture. CUDA rejects the query, and the capture fails.

    False alarm: the query does not run in production.

    Query outside the step, after the replay. A captured step cannot react to the result. Move the
    `record()` of an event along with its query: CUDA rejects the query of an event that a graph records.
    """

    id = "GD109"
    name = "stream-or-event-query"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Query outside the step, after the replay."
    event = Query
    says = " queries whether the GPU is done."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for hit in super().check(recording):
            fix = next((fix for call, fix in _FIXES.items() if hit.operator.startswith(call)), "")
            yield replace(hit, cure=Cure(fix))

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
