"""A recording -> the operators whose shapes differ although their inputs' shapes do not."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.cpu_data import unexplained
from graphdoctor.rules.causes.differences import Found
from graphdoctor.rules.causes.words import operator_words, shape_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.figures import count_text
from graphdoctor.values.recording import Recording


class ShapesDiffer(RecordingRule):
    """An operator's shapes change between iterations.

    With inputs of the same shapes, a result came out larger or smaller than in another iteration:
    its size came from state on the host. A graph holds the shapes of the step that was captured.

    It is a false alarm where the sizes settle after the recorded iterations.

    Work at the full size and mask what is not in use, with the position kept in a tensor on the
    device; or capture one graph for each size.
    """

    id = "GD202"
    name = "shapes-differ"
    effect = "replay-is-wrong"
    explains = ("GD203",)
    evidence = MEASURED
    fix = "Work at one fixed size with a mask, or capture one graph for each size."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for found in unexplained(recording):
            difference = found.difference
            if difference.kind != "shapes":
                continue
            if difference.before is not None and difference.after is not None:
                yield at_op(found.first, difference.before, _message(found))
                yield at_op(found.second, difference.after, _message(found))

    @staticmethod
    def bad() -> object:
        import torch

        class Warming(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.length = 2

            def forward(self, x):
                self.length += 1
                return x[:, : self.length].sum(dim=1)  # <- GD202

        return Warming(), (torch.randn(8, 32, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Warming(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("length", torch.full((), 2, device="cuda"))
                self.register_buffer("places", torch.arange(32, device="cuda"))

            def forward(self, x):
                self.length.add_(1)
                return torch.where(self.places < self.length, x, 0).sum(dim=1)

        return Warming(), (torch.randn(8, 32, device="cuda"),)


def _message(found: Found) -> str:
    difference = found.difference
    assert difference.before is not None and difference.after is not None
    old = " and ".join(shape_words(use) for use in difference.before.outputs[:2])
    new = " and ".join(shape_words(use) for use in difference.after.outputs[:2])
    after = (
        f" (and {count_text(difference.followers, 'operator')} after it)"
        if difference.followers
        else ""
    )
    return (
        f"{operator_words(difference.op)} made {old or 'nothing'} in iteration {found.first} and "
        f"{new or 'nothing'} in iteration {found.second}, from inputs of the same shapes{after}."
    )
