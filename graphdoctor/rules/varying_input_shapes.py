"""Finds the inputs whose shapes vary from iteration to iteration."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import for_cache
from graphdoctor.rules.causes.words import listed, shape_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Iteration, Leaf, Op, Recording, TensorUse


class VaryingInputShapes(RecordingRule):
    """The inputs' shapes change between steps.

    Shapes are frozen at capture. A batch of another size, or sequences of another length, cannot be
    copied into the static input buffers, and the captured kernels would not read the rest.

    False alarm: only the last batch of an epoch is smaller, and you can drop or pad it.

    Pad to a few fixed sizes, with a mask that keeps the result unchanged, and capture one graph per
    size.
    """

    id = "GD212"
    name = "varying-input-shapes"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Capture one graph per size if there are few sizes. Pad inputs to a few fixed sizes, with a mask, if there "
        "are many."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        shapes = _shapes(recording)
        varying = {path for path, seen in shapes.items() if len(set(seen)) > 1}
        for iteration in recording.captured:
            for leaf in iteration.inputs:
                if leaf.path in varying and isinstance(leaf.value, TensorUse):
                    yield _hit(iteration, leaf, _message(leaf.path, shapes[leaf.path]))

    @staticmethod
    def bad() -> object:
        from itertools import cycle
        from types import SimpleNamespace

        import torch

        lengths = cycle((5, 9, 7))

        def step(x):
            return x.softmax(dim=1)  # <- GD212

        def inputs():
            return (torch.randn(4, next(lengths), device="cuda"),)

        return SimpleNamespace(step=step, inputs=inputs)

    @staticmethod
    def good() -> object:
        from itertools import cycle
        from types import SimpleNamespace

        import torch

        lengths = cycle((5, 9, 7))

        def step(x, mask):
            return x.masked_fill(mask, float("-inf")).softmax(dim=1)

        def inputs():
            mask = torch.arange(9, device="cuda") >= next(lengths)
            return torch.randn(4, 9, device="cuda"), mask

        return SimpleNamespace(step=step, inputs=inputs)


def _shapes(recording: Recording) -> dict[str, list[str]]:
    shapes: dict[str, list[str]] = {}
    for iteration in recording.captured:
        for leaf in iteration.inputs:
            if isinstance(leaf.value, TensorUse):
                shapes.setdefault(leaf.path, []).append(shape_words(leaf.value))
    return shapes


def _hit(iteration: Iteration, leaf: Leaf, message: str) -> Hit:
    """At the first operator that reads the input; without a place where none does."""
    op = _first_reader(iteration, leaf)
    if op is None:
        return Hit(iteration.index, 0, message, None)
    return at_op(iteration.index, op, message, cure=Cure(for_cache(op)))


def _first_reader(iteration: Iteration, leaf: Leaf) -> Op | None:
    assert isinstance(leaf.value, TensorUse)
    storage = leaf.value.storage
    for op in iteration.ops:
        if any(use.storage == storage for use in op.inputs):
            return op
    return None


def _message(path: str, shapes: list[str]) -> str:
    return f"{path} is {listed(shapes)} in the recorded steps. Shapes are frozen at capture."
