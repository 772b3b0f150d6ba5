"""A recording -> the tensors built on the device from Python numbers inside the step."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import ELEMENT, STACK, for_python_data
from graphdoctor.rules.causes.draws import for_drawn_copy
from graphdoctor.rules.causes.edits import filled, stacked
from graphdoctor.rules.causes.reads import transfers
from graphdoctor.rules.causes.words import tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class TensorFromPythonData(RecordingRule):
    """A GPU tensor is built from Python data.

    `torch.tensor([...], device="cuda")`, `torch.as_tensor`, `x.new_tensor` and similar calls build the
    tensor on the CPU and copy it to the GPU in every step. CUDA rejects the copy during capture.

    False alarms are rare: even a single number is copied.

    Build constants once, in `__init__`, and keep them with `register_buffer`. `torch.full`,
    `torch.arange` and `torch.zeros` with `device=` fill the memory on the GPU and are safe. Pass
    numbers that change from step to step in an input tensor.
    """

    id = "GD105"
    name = "tensor-from-python-data"
    effect = "capture-fails"
    explains = ("GD104", "GD209", "GD211")
    makes_host_wait = True
    only_feeds_device = True
    evidence = MEASURED
    fix = (
        "Build the tensor once in __init__ as a buffer, or use torch.full, torch.arange or "
        "torch.zeros with device=, which need no copy."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        on_gpu = recording.device == "cuda"
        for iteration in recording.captured:
            for transfer, is_python_data in transfers(iteration.ops, on_gpu=on_gpu):
                if is_python_data:
                    message = (
                        f"A {tensor_words(transfer.source)} is built from Python data on the CPU, "
                        "then copied to the GPU."
                    )
                    place = transfer.op.location
                    fix = for_drawn_copy(place) or for_python_data(transfer.op, iteration)
                    edit = {STACK: stacked, ELEMENT: filled}.get(fix)
                    edits = edit(place) if edit is not None else ()
                    yield at_op(iteration.index, transfer.op, message, cure=Cure(fix, edits=edits))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            weights = torch.tensor([0.2, 0.3, 0.5], device=x.device)  # <- GD105
            return x * weights

        return step, (torch.randn(8, 3, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        weights = torch.tensor([0.2, 0.3, 0.5], device="cuda")

        def step(x):
            return x * weights

        return step, (torch.randn(8, 3, device="cuda"),)
