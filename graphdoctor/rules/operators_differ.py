"""Finds the operators that run in some iterations only."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.causes.advice import for_state_branch
from graphdoctor.rules.causes.branch_points import branch_at, place_of_branch
from graphdoctor.rules.causes.cpu_data import unexplained
from graphdoctor.rules.causes.differences import Found
from graphdoctor.rules.causes.words import operator_words, place_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class OperatorsDiffer(RecordingRule):
    """Steps run different operators.

    With inputs of the same shapes, one step ran operators that another step did not: a counter, a flag
    or other CPU state selected a branch. A replay always runs the captured operators, whatever that
    state has become.

    False alarm: the difference belongs to initialization, such as a cache that is filled only once.

    Move the branch outside the step and capture one graph per branch. Or keep the state on the GPU and
    select with `torch.where`.
    """

    id = "GD201"
    name = "operators-differ"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Move the branch outside the step and capture one graph per branch. Or keep the state "
        "on the GPU and select with torch.where."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for found in unexplained(recording):
            if found.difference.kind == "operators":
                yield from _hits(found)

    @staticmethod
    def bad() -> object:
        import torch

        class Alternating(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.steps = 0

            def forward(self, x):
                self.steps += 1
                if self.steps % 2:  # <- GD201
                    return torch.sin(x)
                return torch.cos(x)

        return Alternating(), (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Alternating(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device="cuda"))

            def forward(self, x):
                self.steps.add_(1)
                return torch.where(self.steps % 2 == 1, torch.sin(x), torch.cos(x))

        return Alternating(), (torch.randn(8, 16, device="cuda"),)


def _hits(found: Found) -> Iterator[Hit]:
    difference = found.difference
    for index, op in ((found.first, difference.before), (found.second, difference.after)):
        if op is None:
            continue
        branch = difference.branch
        at = branch or (branch_at(op.location) if op.location is not None else None)
        hit = at_op(
            index, op, _message(found), cure=Cure(for_state_branch(at) if at is not None else "")
        )
        if branch is not None:
            place, stack = place_of_branch(branch, op)
            hit = replace(hit, location=place, stack=stack)
        yield hit


def _message(found: Found) -> str:
    difference = found.difference
    index = found.first if difference.before is not None else found.second
    other = found.second if difference.before is not None else found.first
    op = difference.before or difference.op
    first = operator_words(op)
    if difference.branch is not None:
        where = place_words(op.location, difference.branch.location)
        one, another = sorted((index, other))
        return (
            f"`{difference.branch.text}` took different branches in steps {one} and {another}: "
            f"{first} ({where}) ran in only one of them{difference.following}."
        )
    return f"{first} ran in step {index} and not in step {other}{difference.following}."
