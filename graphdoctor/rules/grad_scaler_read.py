"""Finds the places where a gradient scaler reads its flags on the host."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.reads import host_reads
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording

_FLAG_READ = "`scaler.step()` reads found_inf on the CPU, which is a host sync, to decide whether the optimizer steps."
_SCALE_READ = "`scaler.get_scale()` reads the scale on the CPU, which is a host sync."
_READ_LATER = (
    "Call `scaler.get_scale()` outside the step, after the replay, together with what depends on the scale,"
    " such as `scheduler.step()`."
)
_OUTSIDE = (
    "Or call scaler.step() and scaler.update() outside the captured region, after the replay."
)


class GradScalerRead(RecordingRule):
    """The gradient scaler checks for overflow on the CPU.

    `scaler.step(optimizer)` reads the GPU flag `found_inf` and skips the optimizer step if the flag is
    set. That read is a host sync, which CUDA rejects during capture. `scaler.get_scale()` reads the
    scale in the same way, whichever optimizer it is.

    An optimizer that takes the flag on the GPU reads nothing, and is not reported.

    Use `fused=True` with Adam, AdamW or SGD, which skip the update on the GPU. Or train in bfloat16,
    which needs no scaler. Or keep the scaler and the optimizer outside the captured region. Call
    `scaler.get_scale()` after the replay.
    """

    id = "GD112"
    name = "grad-scaler-read"
    effect = "capture-fails"
    explains = ("GD203",)  # other rules leave the reads of a scaler to this one, and only these
    makes_host_wait = True
    is_glue = True
    evidence = MEASURED
    fix = (
        "Use Adam, AdamW or SGD with fused=True, which takes the flag on the GPU, or bfloat16, which needs no "
        f"scaler. {_OUTSIDE}"
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        for read in host_reads(recording):
            if read.of_scaler:
                if read.of_scaler == "scale":
                    yield at_op(read.iteration, read.op, _SCALE_READ, cure=Cure(_READ_LATER))
                else:
                    yield at_op(read.iteration, read.op, _FLAG_READ, cure=Cure(_fix(recording)))

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


def _fix(recording: Recording) -> str:
    """The way out that some optimizer of the step does not have is left out."""
    names = sorted({each.class_name for each in recording.optimizers if not each.fused})
    without = [name for name in names if name not in ("Adam", "AdamW", "SGD")]
    if without:
        return f"{without[0]} has no fused=True for a GPU. Train in bfloat16, which needs no scaler. {_OUTSIDE}"
    if names:
        return (
            f"Construct {' and '.join(names)} with `fused=True`, which takes the flag on the GPU. Or train in "
            f"bfloat16, which needs no scaler. {_OUTSIDE}"
        )
    return ""
