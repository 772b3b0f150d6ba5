"""A recording -> the optimizer steps that torch refuses to capture."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.causes.optimizers import OUTSIDE, has_no_capturable_form
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event, at_op
from graphdoctor.values.host_events import RefusedOptimizer
from graphdoctor.values.recording import Recording


class NonCapturableOptimizer(RecordingRule):
    """The optimizer keeps its step count on the CPU.

    Adam, AdamW, RMSprop and similar optimizers count steps in CPU tensors and pass numbers derived from
    the count to their kernels. A replay would always apply the captured bias correction, so PyTorch
    rejects the capture of such an optimizer.

    This rule has no false alarms: PyTorch raises an error in the first captured step.

    Construct the optimizer with `capturable=True`, which keeps the count on the GPU, and pass the
    learning rate as a GPU tensor, so that a scheduler can change it. Adafactor has no `capturable`:
    leave its `step()` outside the captured region.
    """

    id = "GD111"
    name = "non-capturable-optimizer"
    effect = "capture-fails"
    explains = (
        "GD101",
        "GD103",
        "GD104",
        "GD201",
        "GD202",
        "GD203",
        "GD204",
        "GD205",
        "GD209",
        "GD211",
    )
    is_glue = True
    evidence = MEASURED
    fix = 'Construct the optimizer with capturable=True and lr=torch.tensor(lr, device="cuda").'

    def check(self, recording: Recording) -> Iterator[Hit]:
        refused = list(_refused(recording))
        yield from refused
        names = [info.class_name for info in recording.optimizers if info.capturable is False]
        if refused or not names or recording.mode != "training":
            return
        for iteration in recording.captured:
            first = next((op for op in iteration.ops if op.phase == "optimizer"), None)
            if first is not None:
                yield at_op(iteration.index, first, _text(names[0]))

    @staticmethod
    def bad() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()  # <- GD111
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])

    @staticmethod
    def good() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        rate = torch.tensor(0.01, device="cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])


def _refused(recording: Recording) -> Iterator[Hit]:
    for iteration in recording.captured:
        for event in iteration.events_of(RefusedOptimizer):
            name = event.class_name
            if has_no_capturable_form(recording.optimizers, name):
                hit = at_event(iteration.index, event, _text_without_form(name))
                yield replace(hit, fix=OUTSIDE)
            else:
                yield at_event(iteration.index, event, _text(name))


def _text_without_form(class_name: str) -> str:
    return (
        f"PyTorch refuses to capture {class_name}'s step: it computes with Python numbers, and "
        "has no capturable=True."
    )


def _text(class_name: str) -> str:
    return (
        f"{class_name} keeps its step count on the CPU, because it was constructed without "
        "`capturable=True`. PyTorch refuses to capture `optimizer.step()`."
    )
