"""A recording -> the places where the host reads values, and what those decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from graphdoctor.operators import host_learns, transfer_of
from graphdoctor.rules.causes.copies import is_list_read
from graphdoctor.rules.causes.flow import Flow, Line, value_flow
from graphdoctor.rules.rule import once
from graphdoctor.values.host_events import RngState
from graphdoctor.values.locations import Lines, Location
from graphdoctor.values.recording import Iteration, Op, Recording, TensorUse

_SCALER_OPERATORS = frozenset({"_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"})
# aten/src/ATen/native/cudnn/RNN.cpp, get_dropout_state: after the generator's state was set, the
# first RNN with dropout draws a seed, reads it on the host and makes its state anew.
_SEEDING = ("random_", "_local_scalar_dense", "_cudnn_init_dropout_state")

ScalerValue = Literal["", "flag", "scale"]
_Reading = Callable[[Iteration], Iterator[tuple[Op, TensorUse]]]


class Read(Struct, frozen=True):
    """One value that the host waits for. `of_scaler`: which one of a GradScaler's, "" for any other."""

    iteration: int
    op: Op
    use: TensorUse
    flow: Flow
    of_scaler: ScalerValue


@once
def host_reads(recording: Recording) -> tuple[Read, ...]:
    """All host reads of device values in the captured iterations, in execution order."""
    return tuple(_all_reads(recording, _reading_device))


def cpu_reads(recording: Recording) -> tuple[Read, ...]:
    """All host reads of CPU tensors: they wait for nothing, but may decide what the device does."""
    return tuple(_all_reads(recording, _reading_cpu))


def _all_reads(recording: Recording, reading: _Reading) -> Iterator[Read]:
    flows: dict[tuple[Location | None, tuple[Location, ...]], Flow] = {}
    for iteration in recording.captured:
        lines = tensor_lines(iteration)
        scaler = _scaler_storages(iteration)
        for op, use in reading(iteration):
            key = (op.location, op.stack)
            if key not in flows:
                flows[key] = flow_from(op.location, op.stack, lines, recording.lines)
            yield Read(iteration.index, op, use, flows[key], scaler.get(use.storage, ""))


def tensor_lines(iteration: Iteration) -> frozenset[Line]:
    """Lines on which operators ran whose results are tensors on the device.

    A line that ends in a read binds a number, however its operand was computed.
    """
    last: dict[Line, Op] = {}
    for op in iteration.ops:
        if op.location is not None and op.phase == "forward":
            last[(op.location.file, op.location.line)] = op
    return frozenset(
        line for line, op in last.items() if op.outputs and any(use.is_cuda for use in op.outputs)
    )


def flow_from(
    location: Location | None,
    stack: tuple[Location, ...],
    lines: frozenset[Line],
    step: Lines | None,
) -> Flow:
    return value_flow((location, *stack), lines, step) if location is not None else Flow(None)


def _reading_cpu(iteration: Iteration) -> Iterator[tuple[Op, TensorUse]]:
    for op in iteration.ops:
        if host_learns(op) == "value" and op.phase == "forward":
            inputs = op.inputs
            if inputs and not any(use.is_cuda for use in inputs):
                yield op, inputs[0]


def _reading_device(iteration: Iteration) -> Iterator[tuple[Op, TensorUse]]:
    of_recording = dropout_seeding(iteration)
    for op in iteration.ops:
        if op.index in of_recording:
            continue
        if host_learns(op) == "value":
            use = next((use for use in op.inputs if use.is_cuda), None)
            if use is not None:
                yield op, use
            continue
        transfer = transfer_of(op)
        if transfer is not None and not transfer.to_device and is_list_read(op):
            yield op, transfer.source


def _scaler_storages(iteration: Iteration) -> dict[int, ScalerValue]:
    """Storages of torch.amp.GradScaler: its scale, and its growth tracker and found_inf flags."""
    found: dict[int, ScalerValue] = {}
    for op in iteration.ops:
        if op.base_name in _SCALER_OPERATORS:
            # Gradients come in a list: only what is passed singly is the scaler's own.
            found |= {arg.storage: "flag" for arg in op.args if isinstance(arg, TensorUse)}
        elif found and op.base_name == "_to_copy" and op.inputs[0].storage in found:
            found |= {use.storage: found[op.inputs[0].storage] for use in op.outputs}
        if op.base_name == "_amp_update_scale_":
            found[op.inputs[0].storage] = "scale"
    return found


def dropout_seeding(iteration: Iteration) -> frozenset[int]:
    """Indices of the operators that seed cuDNN's dropout because the recording set the generator's state.

    There are none where the step itself seeds the generator, since each replay would too.

    Every series of iterations begins with the generator's state put back, so its first iteration
    shows what no step in a row does.
    """
    if iteration.events_of(RngState):
        return frozenset()
    found: set[int] = set()
    names = tuple(op.base_name for op in iteration.ops)
    for place in range(len(names)):
        if names[place : place + 3] == _SEEDING:
            begins = place - 1 if place and names[place - 1] == "empty" else place
            found.update(range(begins, place + 3))
    return frozenset(iteration.ops[place].index for place in found)
