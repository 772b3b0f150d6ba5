"""A recording -> the optimizer steps that torch refuses to capture."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.causes.construction import construction_of
from graphdoctor.rules.causes.optimizers import (
    OUTSIDE,
    has_no_capturable_form,
    options_advice,
    rates_change,
    stored_rate_advice,
)
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event, at_op
from graphdoctor.values.finding import Edit
from graphdoctor.values.host_events import RefusedOptimizer
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Recording

_SCHEDULER = "Set the learning rate outside the captured step, as with scheduler.step()."


class NonCapturableOptimizer(RecordingRule):
    """The optimizer keeps its step count on the CPU.

    Adam, AdamW, RMSprop and similar optimizers count steps in CPU tensors and pass numbers derived from
    the count to their kernels. A replay would always apply the captured bias correction, so PyTorch
    rejects the capture of such an optimizer.

    This rule has no false alarms: PyTorch raises an error in the first captured step.

    Construct the optimizer with `capturable=True`, which keeps the count on the GPU. Its parameters have
    to be on the GPU before the first step. If the program changes the learning rate, pass it as a GPU
    tensor: a number is frozen at capture. Call `scheduler.step()` outside the captured step: it updates
    the tensor in place. Adafactor has no `capturable`: leave its `step()` outside the captured region.
    `graphdoctor.capture` of a step makes its optimizers capturable itself.
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
    fix = "Construct the optimizer with `capturable=True`."

    def check(self, recording: Recording) -> Iterator[Hit]:
        refused = list(_refused(recording))
        yield from refused
        names = [info.class_name for info in recording.optimizers if info.capturable is False]
        if refused or not names or recording.mode != "training":
            return
        for iteration in recording.captured:
            first = next((op for op in iteration.ops if op.phase == "optimizer"), None)
            if first is not None:
                fix, edits = _cure(recording, (first.location, *first.stack), names[0])
                yield at_op(iteration.index, first, _text(names[0]), fix=fix, edits=edits)

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
                hit = at_event(iteration.index, event, _text(name))
                fix, edits = _cure(recording, (event.location, *event.stack), name)
                yield replace(hit, fix=fix, edits=edits)


def _cure(
    recording: Recording, frames: tuple[Location | None, ...], class_name: str
) -> tuple[str, tuple[Edit, ...]]:
    """The cure with what a rate that changes needs, too: GD204 would be next."""
    if advice := options_advice(recording):
        return advice, ()
    stored = stored_rate_advice(frames)
    is_scheduled = any(
        info.is_scheduled for info in recording.optimizers if info.class_name == class_name
    )
    changes = rates_change(recording)
    tensor_rate = bool(stored) or changes or is_scheduled
    more = stored or (_SCHEDULER if changes else "")
    made = construction_of(frames, class_name)
    if made is not None:
        fix, edits = made.capturable(tensor_rate=tensor_rate, more=more)
        return fix, edits if not stored else ()
    rate = ', lr=torch.tensor(lr, device="cuda")' if tensor_rate else ""
    return f"Construct {class_name} with `capturable=True{rate}`. {more}".rstrip(), ()


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
