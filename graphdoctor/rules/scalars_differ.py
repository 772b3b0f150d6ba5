"""Finds the operators whose numbers change between iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphdoctor.rules.causes.cpu_data import unexplained
from graphdoctor.rules.causes.differences import Found
from graphdoctor.rules.causes.numbers import COUNTED, for_number, rates_change
from graphdoctor.rules.causes.words import listed, operator_words, value_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Cure
from graphdoctor.values.recording import Op, Recording


class ScalarsDiffer(RecordingRule):
    """A number that an operator receives changes between steps.

    A Python number is passed to the kernel as an argument, and kernel arguments are frozen at capture.
    A loss weight, a temperature, a position or a bias correction that changes from step to step keeps
    its captured value.

    The bias correction of an optimizer that counts its steps on the CPU is such a number.

    False alarm: the number becomes constant after the recorded steps.

    Keep the number in a 0-d GPU tensor. Update it inside the step (`self.scale.mul_(0.99)`), or fill it
    before each replay (`scale.fill_(value)`).
    """

    id = "GD203"
    name = "scalars-differ"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Keep the number in a 0-d GPU tensor. Update it in place inside the step, or fill_ it "
        "before each replay."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        yield from scalar_hits(unexplained_scalars(recording, in_optimizer=False))
        if not rates_change(recording):  # else it is GD204's
            yield from scalar_hits(unexplained_scalars(recording, in_optimizer=True), fix=COUNTED)

    @staticmethod
    def bad() -> object:
        import torch

        class Annealed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = 1.0

            def forward(self, x):
                self.scale *= 0.5
                return x * self.scale  # <- GD203

        return Annealed(), (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Annealed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.ones((), device="cuda"))

            def forward(self, x):
                self.scale.mul_(0.5)
                return x * self.scale

        return Annealed(), (torch.randn(8, 16, device="cuda"),)


def unexplained_scalars(recording: Recording, *, in_optimizer: bool) -> list[Found]:
    """Differing numbers of operators on the device that nothing else explains."""
    return [
        found
        for found in unexplained(recording)
        if found.difference.kind == "scalars"
        and found.difference.op.is_cuda
        and (found.difference.op.phase == "optimizer") == in_optimizer
    ]


def scalar_hits(all_found: Sequence[Found], *, fix: str = "") -> Iterator[Hit]:
    """Hits on both iterations of each difference; the message has the values of all."""
    by_call: dict[tuple[object, ...], list[Found]] = {}
    for found in all_found:
        by_call.setdefault(_call(found.difference.op, found), []).append(found)
    for group in by_call.values():
        message = _message(group)
        cure = fix or for_number(group[0].difference)
        for found in group:
            for index, op in (
                (found.first, found.difference.before),
                (found.second, found.difference.after),
            ):
                if op is not None:
                    yield at_op(index, op, message, cure=Cure(cure))


def _call(op: Op, found: Found) -> tuple[object, ...]:
    names = tuple(change.argument for change in found.difference.changes)
    return op.name, op.location, op.module, op.phase, names


def _message(group: Sequence[Found]) -> str:
    first = group[0].difference
    change = first.changes[0]
    values = [value_words(change.before)]
    values += [value_words(found.difference.changes[0].after) for found in group]
    followers = max(found.difference.followers for found in group)
    after = f" This also explains {count_text(followers, 'later difference')}." if followers else ""
    return (
        f"{change.argument[0].upper()}{change.argument[1:]} of {operator_words(first.op)} changes between steps "
        f"({listed(values)}) and is frozen at capture.{after}"
    )
