"""A recording in, the operators that wait for the device inside out."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import OperatorFact, evidence_words, fact_about
from graphdoctor.recording import Op, Recording
from graphdoctor.rule import Hit, Rule, at_op
from graphdoctor.rules._copies import transfer_of
from graphdoctor.rules._words import operator_words


class HiddenSyncOperator(Rule):
    """An operator waits for the device inside.

    Some operators check their arguments, or find out a range, by reading values on the host before
    or after they launch their kernels. Nothing in the Python code shows it, but CUDA refuses the
    read while a graph is recorded.

    It is a false alarm only with a version of torch that has lost the check.

    Use the form that does not check: `torch.linalg.inv_ex` and the other `_ex` functions, `histc`
    with explicit bounds, `mean + std * torch.randn_like(mean)`, and for sampling one category `(p /
    torch.empty_like(p).exponential_()).argmax(-1)`.
    """

    id = "GD114"
    name = "hidden-sync-operator"
    effect = "capture-fails"
    fix = (
        "Use the form without the check: torch.linalg's *_ex functions, histc with min and max, or "
        "sampling through exponential_() and argmax."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for op in iteration.ops:
                fact = _sync_in(op)
                if fact is not None:
                    yield at_op(iteration.index, op, _message(op, fact))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            weights = torch.softmax(x, dim=-1)
            return torch.multinomial(weights, 1)  # <- GD114

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            weights = torch.softmax(x, dim=-1)
            return (weights / torch.empty_like(weights).exponential_()).argmax(-1, keepdim=True)

        return step, (torch.randn(8, 16, device="cuda"),)


def _sync_in(op: Op) -> OperatorFact | None:
    if not any(use.is_cuda for use in op.inputs):
        return None
    fact = fact_about(op, "waits", "copies", "pins", "refused")
    return None if fact is None or transfer_of(op) is not None else fact


def _message(op: Op, fact: OperatorFact) -> str:
    return f"{operator_words(op)} {fact.why} ({evidence_words(fact)})."
