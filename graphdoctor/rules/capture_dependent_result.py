"""Finds the places where code takes another path, to another result, because it is being captured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.operators import draws
from graphdoctor.rules.causes.align import Pair, align
from graphdoctor.rules.causes.branch_points import place_of_branch
from graphdoctor.rules.causes.differences import (
    Comparison,
    Difference,
    changes_between,
    differences,
    shapes_of,
)
from graphdoctor.rules.causes.reads import sources_of
from graphdoctor.rules.causes.words import operator_words, place_words, value_words
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.figures import count_text
from graphdoctor.values.host_events import CaptureQuery
from graphdoctor.values.recording import (
    Iteration,
    Leaf,
    Op,
    Recording,
    TensorUse,
)


class CaptureDependentResult(RecordingRule):
    """The step computes a different result during capture.

    Code can check whether it is being captured or traced (`torch.cuda.is_current_stream_capturing()`,
    `torch.compiler.is_compiling()`) and take another branch. Usually that branch only skips a check or
    a host sync. Here the branch changes the result: from the same state and inputs, an output differs
    by more than rounding. A replay always takes the captured branch, so replays do not match eager.

    Outputs that depend on different random draws in the two branches are not reported, because no value
    shows whether they are the same function. The verdict is then unknown. Attention dropout is an
    exception: a different attention mask during capture can select another kernel with another order of
    random numbers. Replays are then compared with eager on the captured branch, and the two eager
    branches are compared with the same attention kernel. If all agree, the step is safe, and a remark
    says that its random numbers differ from eager's.

    False alarm: both results are acceptable.

    Compute the same result in both branches. Or take the captured branch in eager too, so that tests
    run the code that replays run.
    """

    id = "GD214"
    name = "capture-dependent-result"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Compute the same result whether or not the step is captured, or take the captured "
        "branch in eager too."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        yield from partings(recording)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            if torch.cuda.is_current_stream_capturing():  # <- GD214
                return x / 4
            return x / x.abs().amax()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            return x / x.abs().amax()

        return step, (torch.randn(8, 16, device="cuda"),)


class _Parting(Struct, frozen=True):
    """The first difference of the operators that reaches an output which is then another one."""

    cause: Difference
    only_captured: tuple[int, ...]  # operators of the captured run that belong to it, in order
    result: OtherResult


def partings(recording: Recording) -> Iterator[Hit]:
    """Hits in the first iteration whose outputs differ: later ones start from another state.

    What other random numbers reach is left out: whether that is another function, no value tells.
    """
    for eager, captured in zip(recording.eager, recording.captured, strict=False):
        if eager.input_shapes != captured.input_shapes:
            return
        drawing = other_draws(eager, captured)
        results = other_results(eager, captured)
        if results:
            random = _flow(eager, drawing[0]), _flow(captured, drawing[1])
            results = [result for result in results if not _reaches(random, result)]
            yield from _parted(recording, eager, captured, results=results)
        if results or any(drawing):
            return


def other_draws(eager: Iteration, captured: Iteration) -> tuple[frozenset[int], frozenset[int]]:
    """Their indices in either iteration; none where both draw the same in the same order.

    One that draws more, or otherwise, shifts the numbers of all that draw after it from the same
    generator. That of the host and that of the device are two.
    """
    found: tuple[set[int], set[int]] = (set(), set())
    for on_device in (True, False):
        sides = [
            [op for op in iteration.ops if op.is_cuda == on_device and draws(op)]
            for iteration in (eager, captured)
        ]
        pairs = list(zip(*sides, strict=False))
        same = next((at for at, pair in enumerate(pairs) if not _is_same(*pair)), len(pairs))
        for indices, drawing in zip(found, sides, strict=True):
            indices.update(op.index for op in drawing[same:])
    return frozenset(found[0]), frozenset(found[1])


def _is_same(one: Op, other: Op) -> bool:
    """Whether both draw the same numbers from a generator in the same state."""
    return (
        one.name == other.name
        and shapes_of((*one.inputs, *one.outputs)) == shapes_of((*other.inputs, *other.outputs))
        and not any(changes_between(one, other))
    )


def _parted(
    recording: Recording, eager: Iteration, captured: Iteration, *, results: list[OtherResult]
) -> Iterator[Hit]:
    pairs = align(eager.ops, captured.ops)
    comparison = Comparison(eager, captured, may_settle=True)
    causes = [
        cause
        for cause in comparison.run(pairs)
        if _question(cause, comparison) and not _differs_anyway(cause, recording)
    ]
    found = _parting(comparison, causes, pairs, results)
    if found is not None:
        yield from _hits(found, comparison, pairs)


def _differs_anyway(cause: Difference, recording: Recording) -> bool:
    """Whether the host's randomness, a clock, or a state that changes in every step explains it."""
    if cause.source_among(sources_of(recording)) is not None:
        return True
    lines = {found.difference.op.location for found in differences(recording)}
    return cause.op.location in lines


def _parting(
    comparison: Comparison,
    causes: list[Difference],
    pairs: tuple[Pair, ...],
    results: list[OtherResult],
) -> _Parting | None:
    eager, captured = (side.iteration for side in comparison.sides)
    for cause in causes:
        marked = [
            {index for index, found in side.items() if found is cause}
            for side in comparison.by_index
        ]
        flows = _flow(eager, marked[0]), _flow(captured, marked[1])
        for result in results:
            if _reaches(flows, result):
                alone = {after for before, after in pairs if before is None}
                return _Parting(cause, tuple(sorted(marked[1] & alone)), result)
    return None


def _flow(iteration: Iteration, marked: Set[int]) -> set[int]:
    """The storages that hold what these operators made, or what was computed from it."""
    found: set[int] = set()
    for op in iteration.ops:
        if op.index in marked or any(use.storage in found for use in op.inputs):
            found.update(use.storage for use in op.outputs)
            found.update(op.writes)
    return found


def _reaches(flows: tuple[set[int], set[int]], result: OtherResult) -> bool:
    return _in(flows[0], result.eager.value) or _in(flows[1], result.captured.value)


def _in(storages: set[int], value: TensorUse | str) -> bool:
    return isinstance(value, TensorUse) and value.storage in storages


def _hits(found: _Parting, comparison: Comparison, pairs: tuple[Pair, ...]) -> Iterator[Hit]:
    captured = comparison.sides[1].iteration
    cause, op = found.cause, found.cause.op
    branch = cause.branch
    place, stack = (op.location, op.stack) if branch is None else place_of_branch(branch, op)
    is_left_out = cause.after is None
    first = Hit(
        iteration=captured.index,
        op_index=_next(op, pairs) if is_left_out else op.index,
        message=f"{_what(cause)}{_asked(cause, comparison)} {found.result.sentence()}",
        location=place,
        stack=stack,
        module=op.module,
        phase=op.phase,
        operator=op.name,
        between=is_left_out,
    )
    yield first
    for index in found.only_captured:
        if index != first.op_index:
            yield replace(first, op_index=index, follows=True)


def _next(op: Op, pairs: tuple[Pair, ...]) -> int:
    """The captured operator before which eager ran one that the capture leaves out."""
    seen = False
    for before, after in pairs:
        seen = seen or before == op.index
        if seen and after is not None:
            return after
    return sum(after is not None for _, after in pairs)


def _question(cause: Difference, comparison: Comparison) -> CaptureQuery | None:
    """Where the code last queried whether it is captured, before the paths differ."""
    side = comparison.sides[0 if cause.after is None else 1]
    asked = side.iteration.events_of(CaptureQuery)
    return next((event for event in reversed(asked) if event.op_index <= cause.op.index), None)


def _asked(cause: Difference, comparison: Comparison) -> str:
    event = _question(cause, comparison)
    if event is None:
        return ""
    place = place_words(event.location, cause.op.location)
    return f" It called {event.name} ({place})." if place else f" It called {event.name}."


def _what(cause: Difference) -> str:
    op = cause.op
    name = operator_words(op)
    after = f" (and {count_text(cause.followers, 'operator')} after it)" if cause.followers else ""
    if cause.kind == "operators":
        only = f"runs only {'in eager' if cause.after is None else 'during capture'}{after}."
        if cause.branch is None:
            return f"{name} {only}"
        at = place_words(op.location, cause.branch.location)
        where = f"{name} on {at}" if at else name
        return f"`{cause.branch.text}` takes another branch during capture: {where} {only}"
    if cause.changes:
        change = cause.changes[0]
        values = value_words(change.before), value_words(change.after)
        return (
            f"{name} receives {values[0]} as {change.argument} in eager, and {values[1]} during "
            f"capture{after}."
        )
    return f"{name} has operands of another shape during capture{after}."


class OtherResult(Struct, frozen=True):
    """One output of both runs. `values` are the two, of eager and captured, that lie furthest apart."""

    eager: Leaf
    captured: Leaf
    values: tuple[float, float] | None  # None: it has another size

    def sentence(self) -> str:
        if self.values is None:
            return f"{self.captured.path} has another size than in eager."
        was, now = self.values
        return f"{self.captured.path} differs from eager: {now:.4g} instead of {was:.4g}."


def other_results(eager: Iteration, captured: Iteration) -> list[OtherResult]:
    """Outputs of one path that differ by more than another algorithm for the same function may."""
    before = {leaf.path: leaf for leaf in eager.outputs}
    found = (
        _other_result(before[leaf.path], leaf) for leaf in captured.outputs if leaf.path in before
    )
    return [result for result in found if result is not None]


def _other_result(eager: Leaf, captured: Leaf) -> OtherResult | None:
    one, other = eager.sample, captured.sample
    if one is None or other is None:
        return None
    if len(one.values) != len(other.values):
        return OtherResult(eager, captured, None)
    pairs = list(zip(one.values, other.values, strict=True))
    widest = max(pairs, key=_distance)
    # Half the digits of the dtype, in relation to the tensor's largest magnitude.
    is_near = _distance(widest) <= math.sqrt(max(one.eps, other.eps)) * max(one.scale, other.scale)
    return None if is_near else OtherResult(eager, captured, widest)


def _distance(pair: tuple[float, float]) -> float:
    """0.0 of equal values, NaN and infinities included; without bound if only one is finite."""
    one, other = pair
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    distance = abs(one - other)
    return math.inf if math.isnan(distance) else distance
