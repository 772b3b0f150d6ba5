"""A recording in, the operators that read a tensor which each iteration makes anew out."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.recording import Recording
from graphdoctor.rule import Hit, Rule, at_op
from graphdoctor.rules._differences import Found, differences
from graphdoctor.rules._words import counted, operator_words, place_words, tensor_words


class ReboundState(Rule):
    """State is replaced by a new tensor in each step.

    `self.ema = 0.9 * self.ema + 0.1 * x` makes a new tensor, at a new address, and the next step
    reads it there. A graph holds the addresses of the step that was captured: each replay reads the
    old tensor again, so that the state never advances.

    It is a false alarm where code outside the step copies the new tensor back to the old place.

    Update the tensor in place: `self.ema.mul_(0.9).add_(x, alpha=0.1)`, or `self.h.copy_(h)`, with
    the state registered as a buffer.
    """

    id = "GD205"
    name = "rebound-state"
    effect = "replay-is-wrong"
    fix = "Update the tensor in place: buffer.copy_(new), or mul_ and add_ on it."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for found in differences(recording):
            if found.difference.kind == "rebound":
                assert found.difference.after is not None
                yield at_op(found.second, found.difference.after, _message(found))

    @staticmethod
    def bad() -> object:
        import torch

        class Average(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("ema", torch.zeros(16, device="cuda"))

            def forward(self, x):
                self.ema = 0.9 * self.ema + 0.1 * x.mean(dim=0)  # <- GD205
                return x - self.ema

        return Average(), (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Average(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("ema", torch.zeros(16, device="cuda"))

            def forward(self, x):
                self.ema.mul_(0.9).add_(x.mean(dim=0), alpha=0.1)
                return x - self.ema

        return Average(), (torch.randn(8, 16, device="cuda"),)


def _message(found: Found) -> str:
    difference = found.difference
    external, use = difference.external, difference.uses[1]
    assert external is not None and use is not None
    made = place_words(external.location, difference.op.location)
    by = f"made on {made} of" if made else "made in"
    if external.origin != "previous-iteration":
        return (
            f"{operator_words(difference.op)} reads {external.name or 'a tensor from outside the step'}, "
            f"a {tensor_words(use)}, and in another iteration one at another address; a replay reads "
            "the captured one."
        )
    count = counted(difference.followers, "operator")
    after = f" (and {count} after it)" if difference.followers else ""
    return (
        f"{operator_words(difference.op)} reads a {tensor_words(use)} {by} the iteration before, which "
        f"lies at another address each time; a replay reads the captured one{after}."
    )
