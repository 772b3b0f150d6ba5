"""A target and a device -> the same step at any batch size, each time from the state it was found in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from graphdoctor.device import AnyDevice
from graphdoctor.errors import UsageError
from graphdoctor.place import PLACED, place
from graphdoctor.target import Inputs, Snapshot, Target, named_tensors, snapshot, user_code
from graphdoctor.target.clone import clone_inputs, memory_of
from graphdoctor.target.rebatch import BatchPlan, find_batch, rebatch, shapes_of
from graphdoctor.target.tree import leaves
from graphdoctor.target.user_code import is_out_of_memory

Find = Callable[[int | None], Target]  # a batch size, or None for what the file says by itself
Shapes = Mapping[str, tuple[int, ...]]


class Sizes(Protocol):
    """A step at any batch size. `outputs` are those of the described one, where they can be had."""

    @property
    def described(self) -> Target: ...

    @property
    def plan(self) -> BatchPlan | None: ...

    @property
    def outputs(self) -> Shapes: ...

    def at(self, size: int) -> AbstractContextManager[Target]:
        """The target on the device; when the block is left, its state is what it was before."""
        ...


@contextmanager
def open_sizes(find: Find, device: AnyDevice) -> Iterator[Sizes]:
    """Ask the user's functions where they take a batch size, else change the inputs.

    Raises UsageError where the batch cannot be changed in either way.
    """
    described = find(None)
    try:
        before = snapshot(described.roots)
        try:
            placed = place(described, device)
            if not described.sized_by:
                state = before if PLACED not in placed.notes else snapshot(placed.roots)
                yield _changed(placed, state)
                return
            inputs = _inputs_of(placed)
            asked = _Asked(placed, _plan_if_any(placed, inputs), find, device, shapes_of(inputs))
        finally:
            before.restore()
    finally:
        described.close()
    # The described model is gone by now: each size makes one of its own.
    yield asked


@dataclass(frozen=True, slots=True)
class _Changed:
    """One target, whose inputs are given more or fewer rows."""

    described: Target
    plan: BatchPlan
    outputs: Shapes
    state: Snapshot

    @contextmanager
    def at(self, size: int) -> Iterator[Target]:
        try:
            yield rebatch(self.described, self.plan, size)
        finally:
            self.state.restore()


class _Asked:
    """A new target for each size, from functions that take it."""

    def __init__(
        self, placed: Target, plan: BatchPlan | None, find: Find, device: AnyDevice, shapes: Shapes
    ) -> None:
        self.described = placed
        self.plan = plan
        self.outputs: Shapes = {}
        self._find, self._device, self._shapes = find, device, shapes

    @contextmanager
    def at(self, size: int) -> Iterator[Target]:
        target = self._find(size)
        try:
            before = snapshot(target.roots)
            try:
                yield self._sized(place(target, self._device), size)
            finally:
                before.restore()
        finally:
            target.close()

    def _sized(self, placed: Target, size: int) -> Target:
        """A function for the model alone may take the size: the inputs are then still the same."""
        if self.plan is None or shapes_of(_inputs_of(placed)) != self._shapes:
            return placed
        return rebatch(placed, self.plan, size)


def _changed(placed: Target, state: Snapshot) -> _Changed:
    inputs = _inputs_of(placed)
    plan = find_batch(placed, inputs)
    try:
        return _Changed(placed, plan, _output_shapes(placed, inputs), state)
    finally:
        state.restore()


def _inputs_of(target: Target) -> Inputs:
    with user_code("making the inputs"):
        return target.fresh_inputs()


def _plan_if_any(target: Target, inputs: Inputs) -> BatchPlan | None:
    try:
        return find_batch(target, inputs)
    except UsageError:  # its own functions know better how to make a batch
        return None


def _output_shapes(target: Target, inputs: Inputs) -> Shapes:
    """Of one run as described; empty where memory does not even suffice for that."""
    given = clone_inputs(inputs, kept=memory_of(named_tensors(target.roots).values()))
    try:
        with user_code("running the step"):
            outputs = target.step(*given.args, **given.kwargs)
    except Exception as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            return {}
        raise
    found = leaves(outputs, "output")
    return {path: tuple(leaf.shape) for path, leaf in found.items() if hasattr(leaf, "shape")}
