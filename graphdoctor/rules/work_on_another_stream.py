"""Finds the work that goes to a stream outside the capture."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from graphdoctor.rules.causes.advice import for_stream
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import StreamSwitch, UnorderedWork
from graphdoctor.values.recording import Recording


class WorkOnAnotherStream(RecordingRule):
    """Work goes to a stream that is not captured, and is missing from the graph.

    A capture contains the work of one stream and of the streams that fork from it. Work on any other
    stream that needs no new memory runs immediately during capture, without an error. A replay does not
    run it. The default stream, selected by name, is such a stream too.

    False alarm: the work should run only once.

    Fork with `side.wait_stream(torch.cuda.current_stream())` before the work, and join with
    `torch.cuda.current_stream().wait_stream(side)` after it.
    """

    id = "GD213"
    name = "work-on-another-stream"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Fork with side.wait_stream(torch.cuda.current_stream()) before the work, and join "
        "with torch.cuda.current_stream().wait_stream(side) after it."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            switch = None
            for event in iteration.events:
                if isinstance(event, StreamSwitch):
                    switch = event
                elif isinstance(event, UnorderedWork) and not event.refusal:
                    message = (
                        f"{event.name} runs on a stream that did not fork from the step's stream: the "
                        "graph does not contain it."
                    )
                    hit = at_event(iteration.index, event, message)
                    yield structs.replace(hit, cure=Cure(for_stream(self.fix, switch)))

    @staticmethod
    def bad() -> object:
        from types import SimpleNamespace

        import torch

        side, total = torch.cuda.Stream(), torch.zeros(8, 16, device="cuda")

        def step(x):
            with torch.cuda.stream(side):
                total.add_(x)  # <- GD213
            return x + 1

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state={"total": total})

    @staticmethod
    def good() -> object:
        from types import SimpleNamespace

        import torch

        side, total = torch.cuda.Stream(), torch.zeros(8, 16, device="cuda")

        def step(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                total.add_(x)
            torch.cuda.current_stream().wait_stream(side)
            return x + 1

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state={"total": total})
