"""Finds the work and waits on streams that a capture refuses."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from graphdoctor.rules.causes.advice import for_stream
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import StreamSwitch, UnorderedWork
from graphdoctor.values.recording import Recording


class UnorderedStreams(RecordingRule):
    """Streams are used without fork and join.

    A capture contains the work of one stream and of the streams that fork from it, which means that
    they waited for it first. CUDA rejects work on any other stream, a wait for work from before the
    capture, and the end of a capture while a forked stream has unjoined work.

    False alarm: the step is captured together with surrounding code that forks or joins.

    Fork with `side.wait_stream(torch.cuda.current_stream())` before the work on a side stream, and join
    with `torch.cuda.current_stream().wait_stream(side)` after it, both inside the step. Wait for
    earlier work, such as a prefetch, before the step.
    """

    id = "GD116"
    name = "unordered-streams"
    effect = "capture-fails"
    evidence = MEASURED
    fix = (
        "Fork with side.wait_stream(torch.cuda.current_stream()) and join with "
        "torch.cuda.current_stream().wait_stream(side), both inside the step. Wait for "
        "earlier work before the step."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            switch = None
            for event in iteration.events:
                if isinstance(event, StreamSwitch):
                    switch = event
                elif isinstance(event, UnorderedWork) and event.refusal:
                    hit = at_event(iteration.index, event, _message(event))
                    if "unjoined" in event.refusal and switch is not None:
                        # That nobody joined shows at the step's end; the place is where the stream was chosen.
                        hit = structs.replace(hit, location=switch.location, stack=switch.stack)
                    yield structs.replace(hit, cure=Cure(for_stream(self.fix, switch)))

    @staticmethod
    def bad() -> object:
        import torch

        side = torch.cuda.Stream()

        def step(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # <- GD116
                y = x.relu()
            return x + 1, y

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        side = torch.cuda.Stream()

        def step(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x.relu()
            torch.cuda.current_stream().wait_stream(side)
            return x + 1, y

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(event: UnorderedWork) -> str:
    what = event.refusal.removeprefix("CUDA error: ")
    if "unjoined" in what:
        return "The step ends while a side stream has unjoined work."
    if "uncaptured" in what:
        return f"{event.name} waits for work from outside the step: {what}."
    return f"{event.name} runs on a stream that did not fork from the step's: {what}."
