"""A recording -> the places where a gradient scaler reads its flags on the host."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.reads import host_reads
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.recording import Recording


class GradScalerRead(RecordingRule):
    """The gradient scaler checks on the host whether gradients overflowed.

    `scaler.step(optimizer)` reads the flag `found_inf` from the device and skips the optimizer's
    step if it is set. The host waits for the flag, which CUDA refuses while a graph is recorded.
    `scaler.get_scale()` reads the scale in the same way.

    It is a false alarm with an optimizer that takes the flag on the device: for those nothing is
    read, and nothing is reported.

    Use `fused=True` with Adam, AdamW or SGD, which skip the update on the device; or train in
    bfloat16, which needs no scaler; or keep scaler and optimizer outside the captured part.
    """

    id = "GD112"
    name = "grad-scaler-read"
    effect = "capture-fails"
    explains = ("GD203",)  # other rules leave the reads of a scaler to this one, and only these
    makes_host_wait = True
    is_glue = True
    evidence = MEASURED
    fix = (
        "Use a fused optimizer (fused=True), which takes the flag on the device, or bfloat16, "
        "which needs no scaler; or step the optimizer outside the captured part."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for read in host_reads(recording):
            if read.of_scaler:
                message = (
                    "The gradient scaler reads a value of its own (found_inf or the scale) on the "
                    "host, to decide whether the optimizer steps."
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
