"""Finds the operators that read a tensor which each iteration reallocates."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct, structs

from graphdoctor.rules.causes.differences import Found, differences
from graphdoctor.rules.causes.edits import instead_of_statement
from graphdoctor.rules.causes.reads import host_hits
from graphdoctor.rules.causes.source import assigned_to, data_assigned_near, names_in
from graphdoctor.rules.causes.words import operator_words, place_words, tensor_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_op
from graphdoctor.values.figures import shortened
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import ItemTaken, ReplacedBetweenSteps
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.recording import Iteration, Op, Recording


class ReboundState(RecordingRule):
    """State is replaced by a new tensor in each step.

    `self.ema = 0.9 * self.ema + 0.1 * x` allocates a new tensor at a new address, and the next step
    reads the new tensor. Addresses are frozen at capture: each replay reads the old tensor, so the
    state never advances. Gradients that a step leaves, and that the next step accumulates into before
    it zeroes them, are such state too.

    False alarm: code outside the step copies the new tensor back to the old address.

    Update the tensor in place: `self.ema.mul_(0.9).add_(x, alpha=0.1)`, or `self.h.copy_(h)`, with the
    state registered as a buffer.
    """

    id = "GD205"
    name = "rebound-state"
    effect = "replay-is-wrong"
    explains = ("GD202", "GD217")
    evidence = MEASURED
    fix = "Update the tensor in place: buffer.copy_(new), or mul_ and add_ on the buffer."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for found in differences(recording):
            taken = found.source is not None and found.source.kind is ItemTaken  # GD218 reports it
            if found.difference.kind == "rebound" and not taken:
                yield _hit(found, recording)
        yield from host_hits(
            recording,
            ReplacedBetweenSteps,
            lambda event: (
                f"The program puts another tensor into {event.name} between its steps. A replay reads the tensor"
                " that was there at capture."
            ),
        )

    @staticmethod
    def bad() -> object:
        import torch

        class Average(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("ema", torch.zeros(16, device="cuda"))

            def forward(self, x):
                self.ema = 0.9 * self.ema + 0.1 * x.mean(dim=0)  # <- GD205
                return x - self.ema

        return Average(), (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        class Average(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("ema", torch.zeros(16, device="cuda"))

            def forward(self, x):
                self.ema.mul_(0.9).add_(x.mean(dim=0), alpha=0.1)
                return x - self.ema

        return Average(), (torch.randn(8, 16, device="cuda"),)


def _hit(found: Found, recording: Recording) -> Hit:
    """On the line that makes the new tensor, where that is known: that is the line to change."""
    difference = found.difference
    if _is_left_gradient(found):
        return at_op(found.second, difference.op, _gradient_message(found), cure=Cure(_ZERO))
    hit = at_op(found.second, difference.op, _message(found))
    maker = difference.maker
    bound = rebinding_of(recording, found)
    if bound is not None and (maker is None or not _is_on(maker, bound)):
        return structs.replace(
            hit,
            location=bound.location,
            stack=bound.stack,
            message=_rebinding_message(bound, found),
            cure=bound.cure,
        )
    if maker is None or maker.location is None:
        external = difference.external
        is_element = external is not None and external.name.endswith("]")
        return structs.replace(hit, cure=Cure(_ELEMENT)) if is_element else hit
    return structs.replace(
        hit,
        location=maker.location,
        stack=maker.stack,
        module=maker.module,
        cure=bound.cure if bound is not None else Cure(_fix_of_data(maker.location)),
    )


def _is_on(maker: Op, bound: Rebinding) -> bool:
    """Whether the statement that binds the tensor also computes it."""
    place = maker.location
    return place is not None and (place.file, place.line) == (
        bound.location.file,
        bound.location.line,
    )


def _rebinding_message(bound: Rebinding, found: Found) -> str:
    use = found.difference.uses[1]
    assert use is not None
    reads = operator_words(found.difference.op)
    where = place_words(found.difference.op.location, bound.location)
    at = f" on {where}" if where and found.difference.op.location != bound.location else ""
    return (
        f"`{bound.code}` binds another {tensor_words(use)} to `{bound.name}` in each step, which {reads}{at} reads. "
        "A replay reads the captured address."
    )


def _fix_of_data(place: Location) -> str:
    """For `p.data = new`, which gives a parameter other memory: writing into what it copies may not be right."""
    assigned = data_assigned_near(place)
    if assigned is None:
        return ""
    target, value = (ast.unparse(part) for part in (assigned.targets[0], assigned.value))
    return (
        f"Copy instead of assigning: `{target}.copy_({value})` on line {assigned.lineno}: an "
        "assignment to .data rebinds the parameter to the memory of the new tensor."
    )


_ELEMENT = (
    "Take the element of the container outside the step, and pass it to the step as an argument."
)
_ZERO = (
    "Zero these gradients before this backward pass. Or keep their memory with "
    "zero_grad(set_to_none=False)."
)


def _is_left_gradient(found: Found) -> bool:
    """Whether a backward pass adds to what a backward pass of the step before has left.

    As in a GAN whose generator's loss also reaches the discriminator, whose gradients are zeroed later.
    """
    difference = found.difference
    external = difference.external
    is_gradient = external is not None and external.name.endswith(_GRADIENT)
    return is_gradient and difference.op.phase == "backward" and difference.maker is not None


_GRADIENT = ".grad"


def _gradient_message(found: Found) -> str:
    external = found.difference.external
    assert external is not None
    return (
        f"The backward pass accumulates into the gradient of {external.name.removesuffix(_GRADIENT)} left by the "
        "previous step. Eager reallocates that gradient every step. A replay writes to the captured address, which may"
        " now belong to another tensor."
    )


def _message(found: Found) -> str:
    difference = found.difference
    external, use = difference.external, difference.uses[1]
    assert external is not None and use is not None
    reads = operator_words(difference.op)
    name = external.name or "a tensor from outside the step"
    if difference.maker is None:
        return (
            f"{reads} reads {name}, a {tensor_words(use)}, at different addresses in different "
            "steps. A replay reads the captured address."
        )
    maker = difference.maker
    where = place_words(difference.op.location, maker.location)
    at = "" if difference.op.location == maker.location or not where else f" on {where}"
    return (
        f"{operator_words(maker)} allocates a new {tensor_words(use)} here, which {reads}{at} reads "
        "in the next step. Its address changes every step, and a replay reads the captured address."
    )


class Rebinding(Struct, frozen=True):
    """`code` binds a new tensor to `name`; `cure` writes into the tensor that is there."""

    name: str
    code: str
    cure: Cure
    location: Location
    stack: tuple[Location, ...]


def rebinding_of(recording: Recording, found: Found) -> Rebinding | None:
    """The statement of the user that rebinds an attribute in each step."""
    iteration = next((each for each in recording.captured if each.index == found.second), None)
    difference = found.difference
    ops = [op for op in (difference.maker, difference.op) if op is not None]
    for attribute in _rebound(iteration) if iteration is not None else ():
        for op in ops:
            frames = tuple(each for each in (op.location, *op.stack) if each is not None)
            for depth, frame in enumerate(frames):
                bound = None if is_library(frame.file) else assigned_to(frame, attribute)
                if bound is not None:
                    names = sorted(names_in(bound))
                    dotted = (name for name in names if name.rpartition(".")[2] == attribute)
                    how = (
                        "Exchange the contents instead of the tensors"
                        if _is_swap(bound)
                        else "Copy in place instead of binding"
                    )
                    return Rebinding(
                        name=next(dotted, attribute),
                        code=shortened(ast.unparse(bound)),
                        cure=Cure(
                            f"{how}: `{_code(bound)}`.",
                            edits=instead_of_statement(frame.file, bound, _code(bound)),
                        ),
                        location=Location(frame.file, bound.lineno, frame.function),
                        stack=frames[depth + 1 :],
                    )
    return None


def _rebound(iteration: Iteration) -> Iterator[str]:
    """The names of the attributes that now hold another tensor."""
    names = (
        change.path.rpartition(".")[2]
        for change in iteration.changes
        if change.kind == "rebound-tensor" and change.path.rpartition(".")[2].isidentifier()
    )
    yield from dict.fromkeys(name for name in names if name not in ("grad", "data"))


def _is_swap(statement: ast.Assign) -> bool:
    """`a, b = b, a`"""
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    left, right = ([ast.unparse(each) for each in part.elts] for part in (target, value))
    return len(left) == 2 and left == right[::-1]


def _code(statement: ast.Assign) -> str:
    """The same statement, which writes into the tensors that are there."""
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple):
        return f"{ast.unparse(target)}.copy_({ast.unparse(value)})"
    if _is_swap(statement):
        first, second = (ast.unparse(each) for each in target.elts)
        return f"old = {first}.clone(); {first}.copy_({second}); {second}.copy_(old)"
    states = [each for each in target.elts if isinstance(each, ast.Attribute)]
    copies = "; ".join(f"{ast.unparse(state)}.copy_(new_{state.attr})" for state in states)
    names = ", ".join(
        f"new_{each.attr}" if each in states else ast.unparse(each) for each in target.elts
    )
    return f"{names} = {ast.unparse(value)}; {copies}"
