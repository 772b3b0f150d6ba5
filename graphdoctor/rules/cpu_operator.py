"""Finds the operators on the CPU whose changing results steer the step."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.operators import host_learns
from graphdoctor.rules.causes.cpu_data import FrozenWrite, Steering, frozen_writes, steering_values
from graphdoctor.rules.causes.differences import differences
from graphdoctor.rules.causes.draws import for_cpu_value
from graphdoctor.rules.causes.edits import with_device
from graphdoctor.rules.causes.numbers import OUTSIDE
from graphdoctor.rules.causes.reads import source_place
from graphdoctor.rules.causes.words import operator_words, place_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Recording


class CpuOperator(RecordingRule):
    """A CPU operator controls the step.

    A tensor is computed or drawn on the CPU. Its value then selects a branch, becomes a Python number,
    or enters a GPU operator as a scalar. Or the operator updates CPU state, such as an optimizer's step
    count. A graph contains only GPU work: the CPU operator runs once, at capture, and every replay uses
    that result.

    False alarm: the result is the same in each step. Constants and results that are only returned are
    not reported. Neither is a draw that cannot change the comparison, such as `torch.rand([]) < 0.0`
    for layers that are dropped at rate 0.

    Compute on the GPU: use `torch.rand((), device=x.device)` and select with `torch.where`. Or compute
    the value before the step and pass it as an input.
    """

    id = "GD209"
    name = "cpu-operator"
    effect = "replay-is-wrong"
    explains = ("GD201", "GD203", "GD211")
    evidence = MEASURED
    fix = (
        "Pass device=x.device to the operator: replays run GPU operators. Or compute the value "
        "before the step."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        seen: set[tuple[int, int]] = set()
        effects = {
            source_place(found.source): found.difference
            for found in differences(recording)
            if found.source is not None and found.source.kind == "cpu-read"
        }
        for steering in steering_values(recording):
            op = steering.origin.op
            if steering.origin.kind != "operator" or op is None or op.phase == "optimizer":
                continue
            if steering.use.shape and steering.at.fallback is not None:
                continue  # a GPU refuses the operator in eager already
            if (steering.iteration, op.index) not in seen:
                seen.add((steering.iteration, op.index))
                fix = for_cpu_value(steering.at, effects.get(steering.at.location)) or _kept_on_gpu(
                    steering.origin.name
                )
                edits = () if fix else with_device(op.location, op.base_name)
                yield at_op(steering.iteration, op, _message(steering), cure=Cure(fix, edits=edits))
        for write in frozen_writes(recording):
            fix = OUTSIDE if write.op.phase == "optimizer" else _kept_on_gpu(write.state.name)
            yield at_op(write.iteration, write.op, _write_message(write), cure=Cure(fix))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            keep = torch.rand(()) < 0.5  # <- GD209
            return x * 2 if keep else x.clone()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            keep = torch.rand((), device=x.device) < 0.5
            return torch.where(keep, x * 2, x)

        return step, (torch.randn(8, 16, device="cuda"),)


def _message(steering: Steering) -> str:
    op, at = steering.origin.op, steering.at
    assert op is not None
    verb = "draws" if op.may_draw else "computes"
    where = place_words(at.location, op.location)
    where = f" on {where}" if where and at.location != op.location else ""
    ends = (
        f"The CPU reads the result{where}"
        if host_learns(at) == "value"
        else f"{operator_words(at)} on the GPU takes the result as a scalar{where}"
    )
    return f"{operator_words(op)} {verb} on the CPU, which a replay does not repeat. {ends}."


def _kept_on_gpu(state: str) -> str:
    if not state:
        return ""
    return f'Create {state} on the GPU, with `device="cuda"` or as a buffer that moves with the module.'


def _write_message(write: FrozenWrite) -> str:
    state = write.state.name or "state of the step"
    return (
        f"{operator_words(write.op)} updates {state} on the CPU. A replay does not repeat the update: "
        f"{state} is frozen at capture."
    )
