"""Finds the operators whose shapes differ although their inputs' shapes do not."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.cpu_data import unexplained
from graphdoctor.rules.causes.differences import Found
from graphdoctor.rules.causes.numbers import for_size_of
from graphdoctor.rules.causes.words import operator_words, shape_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class ShapesDiffer(RecordingRule):
    """An operator's shapes change between steps.

    With inputs of the same shapes, a result had another size than in another step: CPU state determined
    the size. Shapes are frozen at capture.

    False alarm: the sizes become constant after the recorded steps.

    Work at the full size and mask the unused part, with the position in a GPU tensor. Or capture one
    graph per size.
    """

    id = "GD202"
    name = "shapes-differ"
    effect = "replay-is-wrong"
    explains = ("GD203",)
    evidence = MEASURED
    fix = "Work at one fixed size with a mask, or capture one graph per size."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for found in unexplained(recording):
            difference = found.difference
            if difference.kind != "shapes":
                continue
            if difference.before is not None and difference.after is not None:
                fix = for_size_of(difference)
                yield at_op(found.first, difference.before, _message(found), cure=Cure(fix))
                yield at_op(found.second, difference.after, _message(found), cure=Cure(fix))

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
    return (
        f"{operator_words(difference.op)} returned {old or 'nothing'} in step {found.first} and "
        f"{new or 'nothing'} in step {found.second}, from inputs of the same shapes{difference.following}."
    )
