"""One run of a session's step -> the iteration that it is, as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import torch

from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.record.held_by_wrappers import gathered_parameters
from graphdoctor.record.operators import OperatorObserver
from graphdoctor.record.session import Session
from graphdoctor.record.variation import floating_values, least_and_largest
from graphdoctor.target.state.snapshot import has_memory
from graphdoctor.target.state.tree import input_leaves, leaves
from graphdoctor.target.target import Inputs
from graphdoctor.values.recording import Iteration, Leaf, Sample, StateChange

Look = Callable[[Inputs, object], None]  # at an iteration's inputs and outputs, when it has run


class Observed(NamedTuple):
    """One run of the step, before it is known what the host changed in it."""

    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    observer: OperatorObserver

    def iteration(self, index: int, capturing: bool, changes: tuple[StateChange, ...]) -> Iteration:
        return Iteration(
            index=index,
            capturing=capturing,
            inputs=self.inputs,
            ops=tuple(self.observer.ops),
            events=tuple(self.observer.events),
            externals=tuple(self.observer.externals.values()),
            outputs=self.outputs,
            changes=changes,
        )


def observe(
    session: Session,
    index: int,
    *,
    run: int,
    storages: Mapping[str, int],
    look: Look | None = None,
) -> Observed:
    """Run the step on the inputs of an iteration; others may look, too.

    `run` is a number that no other recorded run has; `storages` are those of the state, by path.
    """
    inputs = session.inputs(index)
    given = input_leaves(inputs)
    observer = OperatorObserver(
        session.device.table,
        session.scopes,
        iteration=run,
        named=_named_storages(session, storages, given),
        device_of=session.device.device_name_of,
    )
    with torch._C.DisableTorchFunction():
        input_values = tuple(_leaf(observer, path, value) for path, value in given.items())
    with session.device.observed_by(observer):
        result = session.call(inputs)
    with torch._C.DisableTorchFunction():
        outputs = tuple(
            _output(observer, path, value, session.device.table)
            for path, value in leaves(result, "output").items()
        )
    if look is not None:
        look(inputs, result)
    return Observed(input_values, outputs, observer)


def _output(observer: OperatorObserver, path: str, value: object, table: StorageTable) -> Leaf:
    leaf = _leaf(observer, path, value)
    if isinstance(value, torch.Tensor) and not table.has_true_values(value):
        return leaf
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        values = floating_values(value)
        has_nan = values is not None and math.isnan(least_and_largest(values)[0])
    return msgspec.structs.replace(leaf, has_nan=has_nan, sample=sample_of(value))


def _named_storages(
    session: Session, storages: Mapping[str, int], given: dict[str, object]
) -> dict[int, tuple[str, str]]:
    """Storages with a name before the step runs: its state, also where it is passed in, and its inputs."""
    named: dict[int, tuple[str, str]] = {}
    for path, number in storages.items():
        named.setdefault(number, ("state", path))
    for path, value in given.items():
        if isinstance(value, torch.Tensor):
            named.setdefault(session.device.table.info(value).number, ("input", path))
    for path, tensor in gathered_parameters(session.target.roots):
        named.setdefault(session.device.table.info(tensor).number, ("state", path))
    return named


def _leaf(observer: OperatorObserver, path: str, value: object) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(path, observer.use(value))
    try:
        return Leaf(path, repr(value)[:200])
    except Exception:  # __repr__ is the user's code
        return Leaf(path, type(value).__name__)


_MOST = 256  # values, spread evenly over the tensor


def sample_of(value: object) -> Sample | None:
    """None for what is no plain tensor with values; the host may wait for the device here."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return None
    if not has_memory(value):
        return None
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        flat = value.detach().resolve_conj().resolve_neg()
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
        step = max(1, -(-flat.numel() // _MOST))
        values = flat[::step].double().cpu()
        eps = torch.finfo(flat.dtype).eps if flat.dtype.is_floating_point else 0.0
        scale = _largest(flat) if eps else 0.0
    return Sample(tuple(values.tolist()), scale=scale, eps=eps)


def _largest(flat: torch.Tensor) -> float:
    """The largest finite magnitude among these values."""
    low, high = least_and_largest(flat)
    if math.isfinite(largest := max(-low, high)):
        return largest
    if flat.dtype.itemsize == 1:
        flat = flat.float()  # float8 lacks the operators
    finite = flat[flat.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
