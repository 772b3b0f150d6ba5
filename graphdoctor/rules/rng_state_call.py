"""A recording in, the places that read or set the device generator's state out."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from graphdoctor.recording import HostEvent, Iteration, Recording
from graphdoctor.rule import Hit, Rule, at_event


class RngStateCall(Rule):
    """The state of the device's random generator is read or set inside the step.

    `torch.manual_seed`, `torch.cuda.get_rng_state` and `set_rng_state` work on the host's copy of
    the generator's state. While a graph is recorded that state lives on the device, so that each
    replay draws new numbers, and torch refuses the call. Activation checkpointing does it too, to
    draw the same dropout masks a second time.

    It is a false alarm only for a seed set to the value that it already has.

    Seed once, before the step. Give checkpointing `preserve_rng_state=False` where it runs no
    dropout. A generator of your own is registered with `graph.register_generator_state`.
    """

    id = "GD110"
    name = "rng-state-call"
    effect = "capture-fails"
    fix = (
        "Seed before the step, not in it; give torch.utils.checkpoint preserve_rng_state=False "
        "where the checkpointed part draws no random numbers."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            events = [event for event in iteration.events if event.kind == "rng-state"]
            for event in events:
                hit = at_event(iteration.index, event, _message(event))
                first = events[0]
                if _in_backward(event, iteration) and not _in_backward(first, iteration):
                    # Checkpointing sets the state again when it recomputes: the same cause.
                    hit = structs.replace(hit, location=first.location, stack=first.stack)
                yield hit

    @staticmethod
    def bad() -> object:
        import torch
        from torch.utils.checkpoint import checkpoint

        layer = torch.nn.Linear(16, 16, device="cuda")

        def step(x):
            y = checkpoint(layer, x, use_reentrant=False)  # <- GD110
            y.sum().backward()
            return y

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch
        from torch.utils.checkpoint import checkpoint

        layer = torch.nn.Linear(16, 16, device="cuda")

        def step(x):
            y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
            y.sum().backward()
            return y

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(event: HostEvent) -> str:
    return f"{event.name} uses the device generator's state, which a captured graph owns."


def _in_backward(event: HostEvent, iteration: Iteration) -> bool:
    return event.op_index < len(iteration.ops) and iteration.ops[event.op_index].phase == "backward"
