"""Finds the operators that read state which is larger in each iteration."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import for_cache
from graphdoctor.rules.causes.differences import Found, differences
from graphdoctor.rules.causes.words import operator_words, shape_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class GrowingState(RecordingRule):
    """State grows from step to step.

    A cache that each step extends, such as `self.keys = torch.cat([self.keys, k])` or a list of tensors
    that is stacked, has another size and another address in the next step. Shapes and addresses are
    frozen at capture: replays never read what later steps would have added.

    False alarm: the state reaches its full size before the capture.

    Allocate the state at its full size. Write into it with `index_copy_` at a position that is stored
    in a GPU tensor, and mask the unused part.
    """

    id = "GD206"
    name = "growing-state"
    effect = "replay-is-wrong"
    explains = ("GD202", "GD203", "GD205")
    evidence = MEASURED
    fix = (
        "Allocate the full size once, write with index_copy_ at a position stored in a GPU "
        "tensor, and mask the rest."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for found in differences(recording):
            difference = found.difference
            if difference.kind == "growing" and difference.before and difference.after:
                message = _message(found)
                fix = for_cache(difference.after)
                yield at_op(found.first, difference.before, message, cure=Cure(fix))
                yield at_op(found.second, difference.after, message, cure=Cure(fix))

    @staticmethod
    def bad() -> object:
        import torch

        class Memory(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(1, 16, device="cuda"))

            def forward(self, x):
                self.seen = torch.cat([self.seen, x.mean(dim=0, keepdim=True)])  # <- GD206
                return x - self.seen.sum(dim=0)

        return Memory(), (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Memory(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(64, 16, device="cuda"))
                self.register_buffer("place", torch.ones(1, dtype=torch.int64, device="cuda"))

            def forward(self, x):
                self.seen.index_copy_(0, self.place, x.mean(dim=0, keepdim=True))
                self.place.add_(1)
                return x - self.seen.sum(dim=0)

        return Memory(), (torch.randn(8, 16, device="cuda"),)


def _message(found: Found) -> str:
    difference = found.difference
    old, new = difference.uses
    assert new is not None
    reads = operator_words(difference.op)
    if difference.before is not None and len(difference.before.inputs) != len(difference.op.inputs):
        was, now = len(difference.before.inputs), len(difference.op.inputs)
        return (
            f"{reads} takes {was} tensors in one step and {now} in the next{difference.following}."
        )
    was_shape = shape_words(old) if old is not None else "nothing"
    return (
        f"{reads} reads state of shape {was_shape} in one step and {shape_words(new)} in the "
        f"next{difference.following}."
    )
