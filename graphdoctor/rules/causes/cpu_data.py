"""Finds the changing CPU values that steer the step, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from graphdoctor.operators import host_learns, transfer_of
from graphdoctor.rules.causes.differences import Found, differences
from graphdoctor.rules.causes.source import names_in, statement_at
from graphdoctor.rules.rule import once
from graphdoctor.values.recording import External, Iteration, Op, Recording, TensorUse

OriginKind = Literal["constant", "device", "state", "input", "python", "operator"]
# Operators that take a value of the host only to hand it on, or to say something about it.
_NO_COMPUTATION = frozenset(
    {"lift_fresh", "lift", "detach", "detach_", "alias", "_to_copy", "copy_"}
)


# [0, 1), as torch.rand's documentation says, in every floating-point type.
_UNIFORM = frozenset({"rand", "rand_like"})
# A bound nearer to 0 may become 0 in the draw's type: half's smallest number above 0 is 2 ** -24.
_BELOW_ZERO = -(2.0**-24)
# The largest bound up to which the outcome is the same for every draw; 0 is itself a draw.
_SETTLED_BELOW = {
    "lt": 0.0,
    "ge": 0.0,
    "le": _BELOW_ZERO,
    "gt": _BELOW_ZERO,
    "eq": _BELOW_ZERO,
    "ne": _BELOW_ZERO,
}


class Origin(Struct, frozen=True):
    """Where a CPU tensor's changing value comes from; "constant" if it does not change."""

    kind: OriginKind
    op: Op | None = None  # the first operator that computed it on the CPU
    name: str = ""  # the path of state or input


class Steering(Struct, frozen=True):
    """A CPU value that changes, at the operator where it steers the device or the host's way."""

    iteration: int
    origin: Origin
    at: Op
    use: TensorUse


_CONSTANT = Origin("constant")


@once
def steering_values(recording: Recording) -> tuple[Steering, ...]:
    """Changing CPU values that a device operator takes as an operand, or that the host reads."""
    if not recording.captured:
        return ()
    written = {
        storage for iteration in recording.captured for op in iteration.ops for storage in op.writes
    }
    lasting = frozenset.intersection(
        *(frozenset(one.storage for one in each.externals) for each in recording.captured)
    )
    changing = _changing_numbers(recording)
    return tuple(
        steering
        for iteration in recording.captured
        for steering in _Walk(iteration, lasting - written, changing).run()
    )


class FrozenWrite(Struct, frozen=True):
    """An operator that updates state on the CPU, which a replay leaves as it was."""

    iteration: int
    op: Op
    state: External


def frozen_writes(recording: Recording) -> Iterator[FrozenWrite]:
    """Updates of CPU state, unless what the state steers is reported already."""
    told = _told_storages(recording)
    for iteration in recording.captured:
        state = {
            external.storage: external
            for external in iteration.externals
            if external.origin in ("state", "previous-iteration") and external.device == "cpu"
        }
        for op in iteration.ops:
            written = next((s for s in op.writes if s in state and s not in told), None)
            if written is not None and not op.is_cuda and transfer_of(op) is None:
                yield FrozenWrite(iteration.index, op, state[written])


def _told_storages(recording: Recording) -> frozenset[int]:
    seen = {
        found.source.flow.origin
        for found in differences(recording)
        if found.source is not None and found.source.kind == "cpu-read"
    }
    return frozenset(
        steering.use.storage
        for steering in steering_values(recording)
        if (steering.at.location in seen if host_learns(steering.at) == "value" else True)
    )


@once
def unexplained(recording: Recording) -> tuple[Found, ...]:
    """The differences that no other rule accounts for by what the host read, drew or computed."""
    told = {
        steering.at.location
        for steering in steering_values(recording)
        if steering.origin.kind in ("operator", "device") and host_learns(steering.at) == "value"
    }
    return tuple(
        found
        for found in differences(recording)
        if found.source is None
        or (found.source.kind == "cpu-read" and found.source.flow.origin not in told)
    )


def _changing_numbers(recording: Recording) -> frozenset[tuple[int, int]]:
    """CPU operators, by iteration and index, that got other numbers in another iteration."""
    found: set[tuple[int, int]] = set()
    for difference in differences(recording):
        inner = difference.difference
        if inner.kind == "scalars" and not inner.op.is_cuda:
            if inner.before is not None:
                found.add((difference.first, inner.before.index))
            if inner.after is not None:
                found.add((difference.second, inner.after.index))
    return frozenset(found)


class _Walk:
    """Follows CPU tensors through one iteration."""

    def __init__(
        self, iteration: Iteration, fixed: frozenset[int], changing: frozenset[tuple[int, int]]
    ) -> None:
        self.iteration = iteration
        self.fixed = fixed
        self.changing = changing
        self.externals = {external.storage: external for external in iteration.externals}
        self.changed = frozenset(
            change.path.rpartition(".")[2] for change in iteration.changes if change.kind == "value"
        )
        self.origins: dict[int, Origin] = {}
        # Of views: which part is taken may change.
        self.places: dict[tuple[object, ...], Origin] = {}
        self.uniform: set[int] = set()  # storages that hold a draw of rand() as it was drawn

    def run(self) -> Iterator[Steering]:
        for op in self.iteration.ops:
            self.uniform.difference_update(op.writes)
            host = [use for use in op.inputs if not use.is_cuda]
            if transfer_of(op) is not None:
                for result in op.outputs:
                    if not result.is_cuda:
                        self.origins[result.storage] = Origin("device")
            elif op.is_cuda or (host_learns(op) == "value" and host):
                for use in host:
                    origin = self.origin(use)
                    if origin.kind != "constant":
                        yield Steering(self.iteration.index, origin, op, use)
            else:
                self._computes(op, host)

    def origin(self, use: TensorUse) -> Origin:
        known = self.places.get(_place(use)) or self.origins.get(use.storage)
        if known is None:
            known = self.origins[use.storage] = self._external(self.externals.get(use.storage))
        return known

    def _external(self, external: External | None) -> Origin:
        if external is None or external.storage in self.fixed:
            return _CONSTANT
        if external.origin == "input":
            return Origin("input", name=external.name)
        return Origin("state", name=external.name) if external.origin != "unknown" else _CONSTANT

    def _computes(self, op: Op, host: list[TensorUse]) -> None:
        origin = self._result(op, host)
        for use in op.outputs:
            # What is updated in place stays what it was: state that lasts from step to step.
            if use.is_cuda:
                continue
            if use.storage not in self.externals:
                self.origins[use.storage] = origin
            elif op.is_view:
                self.places[_place(use)] = origin

    def _result(self, op: Op, host: list[TensorUse]) -> Origin:
        if op.may_draw and not op.is_view:
            if op.base_name in _UNIFORM and not op.writes:
                self.uniform.update(use.storage for use in op.outputs)
            return Origin("operator", op)
        if op.base_name in ("lift_fresh", "lift"):
            name = self._changed_name(op)
            return Origin("python", name=name) if name else _CONSTANT
        if (self.iteration.index, op.index) in self.changing:
            return Origin("python", op)
        if _is_settled(op) and host[0].storage in self.uniform:
            return _CONSTANT
        sources = [origin for origin in map(self.origin, host) if origin.kind != "constant"]
        if not sources:
            return _CONSTANT
        first = sources[0]
        computes = op.base_name not in _NO_COMPUTATION and not op.is_view
        return Origin("operator", op, first.name) if computes and first.op is None else first

    def _changed_name(self, op: Op) -> str:
        """The attribute on this line whose value this iteration changed, if there is one."""
        place = op.location
        if place is None or not self.changed:
            return ""
        statement = statement_at(place.file, place.line)
        names = names_in(statement) if statement is not None else ()
        return next((name for name in names if name.rpartition(".")[2] in self.changed), "")


def _place(use: TensorUse) -> tuple[object, ...]:
    return use.storage, use.offset, use.shape, use.stride


def _is_settled(op: Op) -> bool:
    """Whether an operator compares its operand with a number that lies outside [0, 1), on one side."""
    below = _SETTLED_BELOW.get(op.base_name)
    if below is None or op.writes or len(op.args) != 2:
        return False
    operand, bound = op.args
    if not isinstance(operand, TensorUse) or not isinstance(bound, int | float):
        return False
    return bound <= below or bound >= 1.0
