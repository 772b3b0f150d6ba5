"""Finds the operators that wait for the device internally."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import (
    OperatorFact,
    evidence_words,
    fact_about,
    transfer_of,
    waiting_backwards,
)
from graphdoctor.rules.causes.advice import LOGARITHMS, for_wait
from graphdoctor.rules.causes.words import operator_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Op, Recording


class HiddenSyncOperator(RecordingRule):
    """An operator synchronizes with the GPU internally.

    Some operators check their arguments, or compute a range, by reading values on the CPU. The Python
    code does not show the host sync, but CUDA rejects it during capture.

    `docs/operators.md` lists what each operator does, and each message says how it is known. False
    alarm: your version of torch no longer makes the check. A measurement is valid for the version it
    was made with.

    The backward of `prod` and `cumprod` is a host sync too: it searches the input for zeros.
    `torch.cumsum(x.log(), dim).exp()` has the same values for x > 0, and its backward makes no host
    sync.

    Use the variant without a check: `torch.linalg.inv_ex` and the other `_ex` functions, `histc` with
    explicit bounds, `mean + std * torch.randn_like(mean)` instead of `torch.normal`.
    """

    id = "GD114"
    name = "hidden-sync-operator"
    effect = "capture-fails"
    explains = ("GD101",)
    makes_host_wait = True
    evidence = MEASURED
    fix = (
        "Use a variant of the operator without a host sync, or call it outside the captured "
        "region: before the step, or after the replay."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for op in iteration.ops:
                fact = _sync_in(op)
                if fact is not None:
                    message = f"{_does(op, fact)}. This was {evidence_words(fact)}."
                    yield at_op(
                        iteration.index,
                        op,
                        message,
                        cure=for_wait(op, iteration),
                        refused_alone=True,
                    )
            for op, forward in waiting_backwards(iteration.ops):
                message = (
                    f"The backward of {operator_words(forward)} is a host sync: it searches for zeros. "
                    f"{_sentence(MEASURED)}"
                )
                yield at_op(iteration.index, op, message, cure=Cure(LOGARITHMS))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            covariance = x @ x.T + torch.eye(8, device="cuda")
            return torch.linalg.inv(covariance)  # <- GD114

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            covariance = x @ x.T + torch.eye(8, device="cuda")
            return torch.linalg.inv_ex(covariance).inverse

        return step, (torch.randn(8, 16, device="cuda"),)


def _does(op: Op, fact: OperatorFact) -> str:
    """ "aten.normal is a host sync: it checks ...", or what else CUDA rejects."""
    name = operator_words(op)
    return (
        f"{name} {fact.why}"
        if fact.effect == "refused"
        else f"{name} is a host sync: it {fact.why}"
    )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _sync_in(op: Op) -> OperatorFact | None:
    fact = fact_about(op, "waits", "copies", "pins", "refused")
    if fact is None or not any(use.is_cuda for use in op.inputs):
        return None
    return None if transfer_of(op) is not None else fact
