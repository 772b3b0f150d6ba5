"""Finds the operators whose result has a shape that depends on values."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import host_learns
from graphdoctor.operators.conditions import has_mask_index
from graphdoctor.rules.causes.sizes import for_size
from graphdoctor.rules.causes.words import operator_words, tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op, Recording


class DataDependentShape(RecordingRule):
    """The shape of a result depends on tensor values.

    `nonzero`, `x[mask]`, `masked_select`, `unique`, `bincount`, `torch.where(condition)` and
    `repeat_interleave` with a tensor of counts return a result whose size depends on values. The CPU
    waits for that size to allocate memory, and CUDA rejects the host sync during capture. A graph also
    has fixed shapes.

    A result that has the same shape in every step is no false alarm: the host sync remains. `y[mask] =
    0.0` is safe and is not reported.

    Keep the full shape and apply the mask to the values: `torch.where(mask, x, 0)`, a weighted sum
    instead of a mean over selected rows, `torch.nonzero_static(size=...)`, or `output_size=` for
    `repeat_interleave`.
    """

    id = "GD106"
    name = "data-dependent-shape"
    effect = "capture-fails"
    explains = ("GD101", "GD201", "GD202", "GD203")
    makes_host_wait = True
    evidence = MEASURED
    fix = (
        "Keep the full shape and mask the values: torch.where(mask, x, 0), a sum weighted by "
        "the mask, or torch.nonzero_static with a fixed size."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        found = [
            (iteration, op)
            for iteration in recording.captured
            for op in iteration.ops
            if host_learns(op) == "size" and any(use.is_cuda for use in op.inputs)
        ]
        sizes: dict[Location | None, set[tuple[int, ...]]] = {}
        for _, op in found:
            sizes.setdefault(op.location, set()).update(out.shape for out in op.outputs)
        for iteration, op in found:
            cure = for_size(op, iteration, is_fixed=len(sizes[op.location]) == 1)
            yield at_op(iteration.index, op, _message(op), cure=cure, refused_alone=True)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            chosen = x[x > 0]  # <- GD106
            return chosen.sum()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            chosen = torch.where(x > 0, x, 0)
            return chosen.sum()

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(op: Op) -> str:
    if has_mask_index(op):
        mask = next(use for use in op.inputs[1:] if use.dtype in ("bool", "uint8"))
        return (
            f"Indexing by a mask, a {tensor_words(mask)}, is a host sync: the CPU waits for the "
            "number of selected elements."
        )
    result = f" (here a {tensor_words(op.outputs[0])})" if op.outputs else ""
    return (
        f"{operator_words(op)} is a host sync: the size of its result{result} depends on tensor "
        "values."
    )
