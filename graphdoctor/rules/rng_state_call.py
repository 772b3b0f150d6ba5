"""Finds the calls that set the device generator to another seed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.causes.draws import for_repeated
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import RngState
from graphdoctor.values.recording import Iteration, Recording


class RngStateCall(RecordingRule):
    """The step reseeds the GPU's random generator.

    The seed is frozen at capture; only the offset of the generator is on the GPU, so each replay draws
    new numbers. PyTorch rejects `torch.manual_seed` with another seed, a state with another seed, and
    `torch.cuda.seed()` during capture.

    False alarm: the seed changes only in the recorded steps. A call that keeps the seed is captured,
    and so are reading the state and checkpointing with `preserve_rng_state`. torch before 2.10 rejects
    those too, and then they are reported.

    Seed once, before the step. Draw numbers that must repeat once, and keep them in a tensor: before
    the step if they repeat in every step, else in the step. With an older torch, pass
    `preserve_rng_state=False` to checkpointing of code without dropout.
    """

    id = "GD110"
    name = "rng-state-call"
    effect = "capture-fails"
    explains = ("GD101", "GD103", "GD104")
    evidence = f"{MEASURED}; the refusals before torch 2.10 are documentation (pytorch#162505)"
    fix = "Seed before the step, and draw the numbers that must repeat once, into a tensor."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            calls = iteration.events_of(RngState)
            first = next((each for each in calls if each.refusal), None)
            refused: dict[int, Hit] = {}  # by the seed
            for event in calls:
                if not event.refusal:
                    if event.seed in refused:  # which would be refused without the call before
                        hit = refused[event.seed]
                        yield replace(hit, op_index=event.op_index, follows=True)
                    continue
                hit = at_event(
                    iteration.index,
                    event,
                    f"PyTorch refuses {event.name} during capture: {event.refusal.rstrip('.')}.",
                )
                hit = replace(hit, cure=Cure(_fix(event, iteration, recording)))
                if first and _in_backward(event, iteration) and not _in_backward(first, iteration):
                    # Checkpointing sets the state again when it recomputes: the same cause.
                    hit = replace(hit, location=first.location, stack=first.stack)
                if event.seed is not None:
                    refused[event.seed] = hit
                yield hit

    @staticmethod
    def bad() -> object:
        import torch

        seeds = [1]

        def step(x):
            seeds[0] += 1
            torch.cuda.manual_seed(seeds[0])  # <- GD110
            return torch.nn.functional.dropout(x, 0.5)

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        torch.cuda.manual_seed(1)

        def step(x):
            return torch.nn.functional.dropout(x, 0.5)

        return step, (torch.randn(8, 16, device="cuda"),)


def _fix(event: RngState, iteration: Iteration, recording: Recording) -> str:
    if "current_seed during CUDA graph capture" in event.refusal:  # torch before 2.10
        return (
            "Seed before the step. If torch.utils.checkpoint makes the call, pass it preserve_rng_state=False,"
            " unless the checkpointed code draws random numbers."
        )
    if repeated := for_repeated(event, iteration, recording):
        return repeated
    return "Seed before the step." if event.seed is not None else ""


def _in_backward(event: RngState, iteration: Iteration) -> bool:
    return event.op_index < len(iteration.ops) and iteration.ops[event.op_index].phase == "backward"
