"""Finds the operators that write into the step's inputs."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.source import changed_name
from graphdoctor.rules.causes.words import operator_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import is_library
from graphdoctor.values.recording import Op, Recording


class MutatedInput(RecordingRule):
    """The step modifies its input in place.

    A captured step reads fixed static input buffers, into which each batch is copied. An operator that
    changes its input in place (`x.add_(1)`, `relu_`, in-place rotary embeddings) changes that buffer.
    The caller's tensor stays unchanged, and a second replay without a new copy starts from the changed
    values.

    False alarm: the caller passes the same buffer each time for this purpose.

    Return a new tensor, or let the caller copy the result back.
    """

    id = "GD210"
    name = "mutated-input"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = "Use the operator that returns a new tensor, or copy the result back outside the step."

    def check(self, recording: Recording) -> Iterator[Hit]:
        given = [
            {external.storage for external in iteration.externals if external.origin == "input"}
            for iteration in recording.captured
        ]
        # What every iteration was handed: buffers of the caller, at a fixed address.
        constant = set.intersection(*given) if len(given) > 1 else set()
        for iteration in recording.captured:
            names = {
                external.storage: external.name
                for external in iteration.externals
                if external.origin == "input" and external.storage not in constant
            }
            for op in iteration.ops:
                written = next((names[storage] for storage in op.writes if storage in names), None)
                if written is not None:
                    yield at_op(iteration.index, op, _message(op, written), cure=Cure(_fix(op)))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            x.mul_(2)  # <- GD210
            return x.sum(dim=1)

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            y = x.mul(2)
            return y.sum(dim=1)

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(op: Op, name: str) -> str:
    return (
        f"{operator_words(op)} writes into {name}: a replay changes the static input buffer, not the "
        "caller's tensor."
    )


def _fix(op: Op) -> str:
    """A setting of torch's module, or a copy of the tensor that the line names."""
    place = op.location
    if place is None or is_library(place.file):
        is_setting = op.module and op.base_name.endswith("_")
        return f"Construct the module `{op.module}` with `inplace=False`." if is_setting else ""
    name = changed_name(place, op.base_name)
    if not name:
        return ""
    return (
        f"Change a copy: write `{name} = {name}.clone()` before this line. If the caller needs the change, return"
        f" `{name}` and copy it back outside the step."
    )
