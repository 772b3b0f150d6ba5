"""A recording -> the operators that wait for the device internally."""

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
from graphdoctor.values.recording import Op, Recording


class HiddenSyncOperator(RecordingRule):
    """An operator waits for the device internally.

    Some operators check their arguments, or find out a range, by reading values on the host before
    or after they launch their kernels. Nothing in the Python code shows it, but CUDA refuses the
    read while a graph is recorded.

    What operators do is in one table (`docs/operators.md`), and each message says how it is known.
    It is a false alarm where a version of torch has lost the check: what was measured on a GPU holds
    for the version that it was measured with.

    The backward of `prod` and `cumprod` waits too: it looks for zeros in their input.
    `torch.cumsum(x.log(), dim).exp()` has the same values for x > 0, and a backward that does not.

    Use the form that does not check: `torch.linalg.inv_ex` and the other `_ex` functions, `histc`
    with explicit bounds, `mean + std * torch.randn_like(mean)` instead of `torch.normal`.
    """

    id = "GD114"
    name = "hidden-sync-operator"
    effect = "capture-fails"
    explains = ("GD101",)
    makes_host_wait = True
    evidence = MEASURED
    fix = (
        "Use a form of it that does not wait, or call it outside the captured part: before the step, "
        "or after the replay."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for op in iteration.ops:
                fact = _sync_in(op)
                if fact is not None:
                    message = _message(op, fact)
                    yield at_op(iteration.index, op, message, fix=for_wait(op), refused_alone=True)
            for op, forward in waiting_backwards(iteration.ops):
                message = (
                    f"The backward of {operator_words(forward)} looks for zeros on the host "
                    f"({MEASURED})."
                )
                yield at_op(iteration.index, op, message, fix=LOGARITHMS)

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


def _sync_in(op: Op) -> OperatorFact | None:
    if not any(use.is_cuda for use in op.inputs):
        return None
    fact = fact_about(op, "waits", "copies", "pins", "refused")
    return None if fact is None or transfer_of(op) is not None else fact


def _message(op: Op, fact: OperatorFact) -> str:
    return f"{operator_words(op)} {fact.why} ({evidence_words(fact)})."
