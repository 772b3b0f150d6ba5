"""Finds the clock readings that reach the computation."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.differences import differences
from graphdoctor.rules.causes.reads import (
    host_hits,
    host_value_hits,
    source_place,
    sources_of,
    transfers,
)
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.host_events import ClockRead, DiffersByClock
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Recording


class HostTime(RecordingRule):
    """The time of day affects the computation.

    The step reads a clock, and its results differ from step to step because of that value. The value is
    frozen at capture.

    A clock read without such an effect, for a log line or a timer, is not reported. A timer inside a
    step measures how long the CPU takes to launch the work, not how long the work takes.

    Pass the time as an input tensor that you fill before each replay.
    """

    id = "GD208"
    name = "host-time"
    effect = "replay-is-wrong"
    explains = ("GD105", "GD201", "GD202", "GD203")
    evidence = MEASURED
    fix = "Read the clock outside the step, and pass the value as an input tensor."

    def check(self, recording: Recording) -> Iterator[Hit]:
        yield from host_hits(
            recording,
            DiffersByClock,
            lambda event: (
                f"{event.difference}, because it depends on {event.name}. A replay reads no clock."
            ),
        )
        reaching = {
            source_place(found.source)
            for found in differences(recording)
            if found.source is not None and found.source.kind is ClockRead
        }
        clocks = [source for source in sources_of(recording) if source.kind is ClockRead]
        if clocks and _returns_other_values(recording):
            reaching |= {source.flow.origin for source in clocks if source.flow.escapes}
        if clocks:
            built = _built_from_python_data(recording)
            reaching |= {
                source.flow.origin for source in clocks if any(map(source.flow.feeds, built))
            }
        for hit in host_value_hits(
            recording,
            ClockRead,
            lambda event: (
                f"{event.name} reads the clock, and the step's results depend on the value."
            ),
        ):
            if hit.location in reaching:
                yield hit

    @staticmethod
    def bad() -> object:
        import time

        import torch

        def step(x):
            phase = time.perf_counter() % 1.0  # <- GD208
            return torch.sin(x + phase)

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import time

        import torch

        def step(x, phase):
            return torch.sin(x + phase)

        now = torch.full((), time.perf_counter(), device="cuda")
        return step, (torch.randn(8, 16, device="cuda"), now)


def _built_from_python_data(recording: Recording) -> list[tuple[Location, ...]]:
    """Where the step copies Python data to the GPU, with the frames outwards."""
    return [
        (transfer.op.location, *transfer.op.stack)
        for iteration in recording.captured[:1]
        for transfer, is_python_data in transfers(iteration.ops, on_gpu=recording.device == "cuda")
        if is_python_data and transfer.op.location is not None
    ]


def _returns_other_values(recording: Recording) -> bool:
    """Whether the step returned something other than tensors that differed between iterations."""
    values: dict[str, set[str]] = {}
    for iteration in recording.captured:
        for leaf in iteration.outputs:
            if isinstance(leaf.value, str):
                values.setdefault(leaf.path, set()).add(leaf.value)
    return any(len(seen) > 1 for seen in values.values())
