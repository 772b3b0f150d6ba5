"""Finds the copies from host to device inside the step."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import Transfer
from graphdoctor.rules.causes.advice import for_copy
from graphdoctor.rules.causes.draws import for_drawn_copy
from graphdoctor.rules.causes.edits import as_slice, index_made_on_gpu, made_on_gpu
from graphdoctor.rules.causes.reads import transfers, undoes_a_copy
from graphdoctor.rules.causes.words import operator_words, tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording

_OTHER_NUMBERS = " After the fix, the same seed draws other numbers."


class HostToDeviceCopy(RecordingRule):
    """A tensor is copied from the CPU to the GPU.

    A copy from pageable CPU memory is a host sync, which CUDA rejects during capture. Copies can be
    implicit: a CPU tensor or a Python list used as an index, as a value that is stored by index, or
    `.to(x.device)` of the result of `torch.arange`.

    torch 2.11 and newer also reject a copy with `non_blocking=True`, unless the memory is pinned. Older
    versions captured it, and replays copied whatever was at that address. A non-blocking copy from
    pinned memory is captured and is not reported: its replays copy what that memory contains at that
    time.

    False alarm: the copy does not run in production.

    Create the tensor on the GPU (`device=x.device`), keep constants in buffers, and move batches to the
    GPU before the step.
    """

    id = "GD104"
    name = "host-to-device-copy"
    effect = "capture-fails"
    explains = ("GD209", "GD211")
    makes_host_wait = True
    only_feeds_device = True
    evidence = MEASURED
    fix = (
        "Create the tensor on the GPU, keep a constant as a buffer of the module, or copy "
        "an input before the step."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        on_gpu = recording.device == "cuda"
        for iteration in recording.captured:
            for transfer, is_python_data in transfers(iteration.ops, on_gpu=on_gpu):
                if (
                    not transfer.to_device
                    or is_python_data
                    or undoes_a_copy(transfer.op, iteration)
                ):
                    continue
                if transfer.non_blocking and transfer.source.pinned:
                    continue  # captured; a replay copies whatever that memory then holds
                place = transfer.op.location
                edits = (
                    as_slice(place) or index_made_on_gpu(place)
                    if transfer.hidden
                    else made_on_gpu(place)
                )
                moves_draw = any("torch.rand" in edit.new_text for edit in edits)
                yield at_op(
                    iteration.index,
                    transfer.op,
                    f"{_message(transfer)}{_OTHER_NUMBERS if moves_draw else ''}",
                    cure=Cure(for_drawn_copy(place) or for_copy(transfer, iteration), edits=edits),
                )

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            positions = torch.arange(x.shape[1])
            return x + positions.to(x.device)  # <- GD104

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            positions = torch.arange(x.shape[1], device=x.device)
            return x + positions

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(transfer: Transfer) -> str:
    tensor = tensor_words(transfer.source)
    if transfer.hidden:
        name = operator_words(transfer.op)
        return f"{name} on the GPU receives a {tensor} on the CPU, and copies it to the GPU first."
    if transfer.non_blocking:
        return f"A {tensor} is copied from the CPU to the GPU, from memory that is not pinned."
    return f"A {tensor} is copied from the CPU to the GPU, which is a host sync."
