"""GD218: the step takes the next element of an iterator or a queue that outlives it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from graphdoctor.rules.causes.differences import differences
from graphdoctor.rules.causes.reads import host_hits
from graphdoctor.rules.rule import Hit, RecordingRule
from graphdoctor.values.host_events import ItemTaken
from graphdoctor.values.recording import Recording


class IteratorAdvanced(RecordingRule):
    """The step takes the next element of an iterator or a queue.

    `batch = next(loader)` or `queue.get()` inside the step gives another element in each eager step. A replay
    runs no Python: it takes no element, and reads the memory of the element that the capture got.

    It is a false alarm if no element changes what the step computes, as for a counter that is only logged.

    Take the element outside the step, and pass it as an argument: `graphdoctor.capture()` copies it into
    a static input before each replay.
    """

    id = "GD218"
    name = "iterator-advanced"
    effect = "replay-is-wrong"
    explains = ("GD201", "GD202", "GD203", "GD205", "GD217")
    evidence = (
        "documentation: CUDA C++ Programming Guide, CUDA Graphs: a graph launch runs no host code"
    )
    fix = "Take the element outside the step, and pass it to the step as an argument."

    def check(self, recording: Recording) -> Iterator[Hit]:
        hits = list(host_hits(recording, ItemTaken, _message))
        yield from hits
        # What reads the element stays out of regions too.
        by_place = {(hit.iteration, hit.location): hit for hit in hits}
        for found in differences(recording):
            taken = found.source
            if taken is None or taken.kind is not ItemTaken:
                continue
            sides = ((found.first, found.difference.before), (found.second, found.difference.after))
            for index, op in sides:
                hit = by_place.get((index, taken.flow.origin))
                if op is not None and hit is not None:
                    yield structs.replace(hit, op_index=op.index, between=False, follows=True)

    @staticmethod
    def bad() -> object:
        import itertools

        import torch

        scales = itertools.count(1)

        def step(x):
            scale = torch.full((), next(scales), device="cuda")  # <- GD218
            return x * scale

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x, scale):
            return x * scale

        return step, (torch.randn(8, 16, device="cuda"), torch.full((), 1.0, device="cuda"))


def _message(event: ItemTaken) -> str:
    return (
        f"Each step takes the next element of {event.name}. A replay takes no element, and reads the"
        " memory of the captured one."
    )
