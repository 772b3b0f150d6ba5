"""A target and a device -> the same step at any batch size, each time from the state it was found in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from graphdoctor.device.open import AnyDevice
from graphdoctor.pipeline import put_back
from graphdoctor.record.place import PLACED, place
from graphdoctor.target import Inputs, Snapshot, Target, named_tensors, snapshot, user_code
from graphdoctor.target.inputs.rebatch import BatchPlan, find_batch, rebatch, shapes_of
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.tree import leaves
from graphdoctor.target.user_code import is_out_of_memory
from graphdoctor.values.errors import UsageError

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
    if described.sized_by:
        asked = _asked(described, find, device)
        del described  # its memory is needed: each size makes a model of its own
        yield asked
        return
    with _on_device(described, device) as (placed, before):
        # What was put on the device must be put back there, and not to where it came from.
        state = before if PLACED not in placed.notes else snapshot(placed.roots)
        yield _changed(placed, state)


@contextmanager
def _on_device(target: Target, device: AnyDevice) -> Iterator[tuple[Target, Snapshot]]:
    """The target on the device, and its state from before, which is put back; then it is closed."""
    with put_back(target) as before:
        yield place(target, device), before


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


@dataclass(frozen=True, slots=True)
class _Asked:
    """A new target for each size, from functions that take it. `shapes` are the described inputs'."""

    described: Target
    plan: BatchPlan | None
    find: Find
    device: AnyDevice
    shapes: Shapes

    @property
    def outputs(self) -> Shapes:
        """Not asked for: who makes the model and its inputs for a size knows what belongs together."""
        return {}

    @contextmanager
    def at(self, size: int) -> Iterator[Target]:
        with _on_device(self.find(size), self.device) as (placed, _):
            yield self._sized(placed, size)

    def _sized(self, placed: Target, size: int) -> Target:
        """A function for the model alone may take the size: the inputs are then still the same."""
        if self.plan is None or shapes_of(_inputs_of(placed)) != self.shapes:
            return placed
        return rebatch(placed, self.plan, size)


def _asked(described: Target, find: Find, device: AnyDevice) -> _Asked:
    with _on_device(described, device) as (placed, _):
        inputs = _inputs_of(placed)
        plan = _plan_if_any(placed, inputs)
        about = replace(placed, step=_nothing, fresh_inputs=Inputs, roots={}, close=_nothing)
        return _Asked(about, plan, find, device, shapes_of(inputs))


def _nothing() -> None:
    pass


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


@dataclass(frozen=True, slots=True)
class Stuck:
    """`text` names the outputs that keep the described batch's size, "" for none.

    `is_all`: no output followed, so that the step did not run at the wanted size at all.
    """

    text: str = ""
    is_all: bool = False


def stuck_outputs(before: Shapes, now: Shapes, *, described: int, batch: int) -> Stuck:
    """Outputs with as many rows as before: broadcasting against a cache hides a wrong batch.

    From a batch of 1 nothing can be concluded: an output of one row may be a summary.
    """
    if batch == described:
        return Stuck()
    sized = [path for path, shape in before.items() if shape and shape[0] == described]
    kept = [path for path in sized if now.get(path, ())[:1] == (described,)]
    if not kept or described == 1:
        return Stuck()
    follows = any(now.get(path, ())[:1] == (batch,) for path in sized)
    text = (
        f"{', '.join(kept)} {'keeps' if len(kept) == 1 else 'keep'} the {described} rows of the"
        " described batch: something that was not changed decides how many there are"
    )
    return Stuck(text, is_all=not follows)
