"""A recording -> the places where a gradient scaler reads its flags on the host."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.reads import host_reads
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.recording import Recording


class GradScalerRead(RecordingRule):
    """The gradient scaler checks for overflow on the CPU.

    `scaler.step(optimizer)` reads the GPU flag `found_inf` and skips the optimizer step if the flag is
    set. That read is a host sync, which CUDA rejects during capture. `scaler.get_scale()` reads the
    scale in the same way.

    An optimizer that takes the flag on the GPU reads nothing, and is not reported.

    Use `fused=True` with Adam, AdamW or SGD, which skip the update on the GPU. Or train in bfloat16,
    which needs no scaler. Or keep the scaler and the optimizer outside the captured region.
    """

    id = "GD112"
    name = "grad-scaler-read"
    effect = "capture-fails"
    explains = ("GD203",)  # other rules leave the reads of a scaler to this one, and only these
    makes_host_wait = True
    is_glue = True
    evidence = MEASURED
    fix = (
        "Use a fused optimizer (fused=True), which takes the flag on the GPU, or bfloat16, "
        "which needs no scaler. Or run the optimizer step outside the captured region."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for read in host_reads(recording):
            if read.of_scaler:
                message = (
                    "The gradient scaler reads found_inf or its scale on the CPU to decide whether the "
                    "optimizer steps, which is a host sync."
                )
                yield at_op(read.iteration, read.op, message)

    @staticmethod
    def bad() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda")

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # <- GD112
            scaler.update()
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer, scaler])

    @staticmethod
    def good() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cuda")

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer, scaler])
