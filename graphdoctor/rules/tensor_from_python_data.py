"""A recording -> the tensors built on the device from Python numbers inside the step."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.advice import for_python_data
from graphdoctor.rules.causes.copies import transfers
from graphdoctor.rules.causes.words import tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.recording import Recording


class TensorFromPythonData(RecordingRule):
    """A tensor on the device is built from Python data.

    `torch.tensor([...], device="cuda")`, `torch.as_tensor`, `x.new_tensor` and the like make the
    tensor on the host and copy it over, in every step. CUDA refuses the copy while a graph is
    recorded.

    There is hardly a false alarm: even a single number takes this way.

    Build constants once, in `__init__`, and keep them with `register_buffer`. `torch.full`,
    `torch.arange`, `torch.zeros` with `device=` fill the memory on the device and are safe. Numbers
    that change from step to step belong in an input tensor.
    """

    id = "GD105"
    name = "tensor-from-python-data"
    effect = "capture-fails"
    explains = ("GD104", "GD209", "GD211")
    makes_host_wait = True
    only_feeds_device = True
    evidence = MEASURED
    fix = (
        "Build it once in __init__ as a buffer, or use torch.full, torch.arange or torch.zeros "
        "with device=, which need no copy."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        on_gpu = recording.device == "cuda"
        for iteration in recording.captured:
            for transfer, is_python_data in transfers(iteration.ops, on_gpu=on_gpu):
                if is_python_data:
                    message = (
                        f"A {tensor_words(transfer.source)} is built from Python data on the host, "
                        "then copied to the device."
                    )
                    fix = for_python_data(transfer.op.location)
                    yield at_op(iteration.index, transfer.op, message, fix=fix)

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
