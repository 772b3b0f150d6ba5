"""Finds the copies from device to host inside the step."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import Transfer
from graphdoctor.rules.causes.advice import for_copy
from graphdoctor.rules.causes.reads import is_list_read, transfers, undoes_a_copy
from graphdoctor.rules.causes.words import tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class DeviceToHostCopy(RecordingRule):
    """A tensor is copied from the GPU to the CPU.

    `.cpu()`, `.to("cpu")` and `host.copy_(t)` wait until the GPU has computed the tensor. CUDA rejects
    that host sync during capture. A copy with `non_blocking=True` into pinned memory does not wait: it
    is captured and is not reported. torch 2.11 and newer reject a copy into other memory. Older
    versions captured it, and replays wrote to the captured CPU address.

    False alarm: the copy does not run in production.

    Keep the computation on the GPU. Copy after the replay what the CPU needs.
    """

    id = "GD103"
    name = "device-to-host-copy"
    effect = "capture-fails"
    explains = ("GD104", "GD202", "GD203", "GD209")
    makes_host_wait = True
    evidence = MEASURED
    fix = "Do this computation on the GPU, or return the tensor and copy it after the replay."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for transfer, _ in transfers(iteration.ops):
                if transfer.to_device or undoes_a_copy(transfer.op, iteration):
                    continue
                if not is_list_read(transfer.op) and not _is_captured(transfer):
                    is_gradient = transfer.op.phase == "backward"
                    fix = _OF_LEAF if is_gradient else for_copy(transfer, iteration)
                    yield at_op(iteration.index, transfer.op, _message(transfer), cure=Cure(fix))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            scores = (x @ x.T).sum(dim=1)
            return x * 2, scores.cpu()  # <- GD103

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            scores = (x @ x.T).sum(dim=1)
            return x * 2, scores

        return step, (torch.randn(8, 16, device="cuda"),)


_OF_LEAF = (
    "The backward pass copies the gradient of a CPU tensor that requires gradients, of which your code moved a copy to "
    'the GPU. Create that tensor on the GPU: `torch.tensor(values, device="cuda", requires_grad=True)`. If its '
    "gradient is not needed, remove `requires_grad=True`."
)


def _is_captured(transfer: Transfer) -> bool:
    """Into pinned memory, unblocked; every replay writes there."""
    op = transfer.op
    target = op.inputs[0] if op.writes else op.outputs[0]
    return transfer.non_blocking and target.pinned


def _message(transfer: Transfer) -> str:
    what = f"A {tensor_words(transfer.source)} is copied from the GPU to the CPU"
    if transfer.non_blocking:
        return f"{what} with non_blocking=True, into memory that is not pinned."
    return f"{what}, which is a host sync."
