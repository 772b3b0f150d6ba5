"""Finds the optimizer steps whose numbers change between iterations."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.numbers import (
    OUTSIDE,
    options_advice,
    rates_change,
    reads_a_rate,
    stored_rate_advice,
)
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.rules.scalars_differ import scalar_hits, unexplained_scalars
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Op, Recording

_UNKNOWN = 'Construct the optimizer with lr=torch.tensor(lr, device="cuda").'
_SCHEDULER = "Call scheduler.step() outside the captured step."


class FrozenLearningRate(RecordingRule):
    """The learning rate is a Python number that changes.

    The optimizer's kernels received different numbers in different steps: a learning rate, momentum or
    weight decay that a scheduler changes. The number is frozen at capture, so replays train with the
    captured rate while the scheduler advances. Nothing fails, and nothing warns.

    False alarm: the schedule ends before the capture.

    Pass the rate as a GPU tensor, `lr=torch.tensor(0.1, device="cuda")`. Schedulers then update the
    tensor in place, and replays read the new value. SGD also needs `fused=True`. Call
    `scheduler.step()` outside the captured step, because a replay runs no Python. An optimizer without
    `capturable` (Muon, and most hand-written ones) reads the rate on the CPU: leave its `step()`
    outside the captured region.
    """

    id = "GD204"
    name = "frozen-learning-rate"
    effect = "replay-is-wrong"
    is_glue = True
    evidence = MEASURED
    fix = f"{_UNKNOWN} {_SCHEDULER}"

    def check(self, recording: Recording) -> Iterator[Hit]:
        if not rates_change(recording):
            return  # numbers that an optimizer counts for itself are GD203's
        changing = unexplained_scalars(recording, in_optimizer=True)
        first = changing[0].difference.op if changing else None
        yield from scalar_hits(changing, fix=_fix(recording, first))
        if not changing and any(info.lr_kind == "float" for info in recording.optimizers):
            yield from _slow_schedules(recording)

    @staticmethod
    def bad() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()  # <- GD204
            scheduler.step()
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer, scheduler])

    @staticmethod
    def good() -> object:
        from types import SimpleNamespace

        import torch

        model = torch.nn.Linear(16, 4, device="cuda")
        rate = torch.tensor(0.1, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=True)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            rate.mul_(0.5)
            return loss

        inputs = (torch.randn(8, 16, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])


def _fix(recording: Recording, op: Op | None) -> str:
    if advice := options_advice(recording):
        return advice
    kinds = {reads_a_rate(info) for info in recording.optimizers if info.lr_kind == "float"}
    if kinds == {True}:
        return OUTSIDE
    made = _constructions(recording) or _UNKNOWN
    stored = stored_rate_advice((op.location, *op.stack) if op is not None else ())
    fix = f"{made} {stored or _SCHEDULER}"
    return f"{fix} {OUTSIDE}" if True in kinds else fix


def _constructions(recording: Recording) -> str:
    """How to construct each optimizer whose rate is a number, so that replays read the rate; "" if there is none."""
    arguments: dict[str, str] = {}
    for info in recording.optimizers:
        if info.lr_kind == "float" and not reads_a_rate(info):
            more = ", fused=True" if info.capturable is None and not info.fused else ""
            more = ", capturable=True" if info.capturable is False else more
            arguments[info.class_name] = f'lr=torch.tensor(lr, device="cuda"){more}'
    named = (f"{name} with `{arguments[name]}`" for name in sorted(arguments))
    return f"Construct {', and '.join(named)}." if arguments else ""


def _slow_schedules(recording: Recording) -> Iterator[Hit]:
    """Schedulers that advance inside the step and have not changed the rate yet."""
    for iteration in recording.captured:
        advanced = [
            change.path.rpartition(".")[0]
            for change in iteration.changes
            if change.path.endswith(".last_epoch")
        ]
        first = next((op for op in iteration.ops if op.phase == "optimizer"), None)
        if advanced and first is not None:
            message = (
                f"{advanced[0]} advances inside the step and will change the learning rate, "
                "which is a Python number. A replay does not advance the scheduler: the rate is frozen at capture."
            )
            yield at_op(iteration.index, first, message, cure=Cure(_fix(recording, first)))
