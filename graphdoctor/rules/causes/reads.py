"""Finds what the host read, copied or drew, what that decides, where it goes, and the hits on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeVar

from msgspec import Struct, structs

from graphdoctor.operators import Transfer, host_learns, transfer_of
from graphdoctor.rules.causes.flow import Flow, Line, value_flow
from graphdoctor.rules.causes.source import written
from graphdoctor.rules.rule import Hit, at_event, once
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import ClockRead, ItemTaken, PythonEvent, RandomDraw
from graphdoctor.values.locations import Lines, Location
from graphdoctor.values.recording import Iteration, Op, Recording, TensorUse


def is_from_python_data(transfer: Transfer, makers: Mapping[int, Op]) -> bool:
    """Whether the copied tensor was made of Python numbers by the same statement.

    `makers` are the operators of the iteration by the storages that they made.
    """
    maker = makers.get(transfer.source.storage)
    if maker is None or transfer.hidden or maker.base_name not in ("lift_fresh", "detach_"):
        return False
    return maker.location == transfer.op.location


def transfers(ops: tuple[Op, ...], *, on_gpu: bool = False) -> Iterator[tuple[Transfer, bool]]:
    """The copies of one iteration, each with whether it carries fresh Python data to the device.

    On a GPU, `torch.tensor(data, device="cuda")` hides its copy from observers: all that they see
    is the `lift_fresh` of a tensor that nobody made. The emulated device shows the copy.
    """
    if not any(transfer_of(op) or (on_gpu and op.base_name == "lift_fresh") for op in ops):
        return
    makers: dict[int, Op] = {}
    for op in ops:
        if on_gpu and op.base_name == "lift_fresh":
            lifted = op.inputs[0]
            if lifted.is_cuda and lifted.numel and lifted.storage not in makers:
                yield Transfer(op, lifted, to_device=True), True
        transfer = transfer_of(op)
        if transfer is not None:
            yield transfer, transfer.to_device and is_from_python_data(transfer, makers)
        given = {use.storage for use in op.inputs} if op.base_name != "lift_fresh" else set()
        makers.update((use.storage, op) for use in op.outputs if use.storage not in given)


def undoes_a_copy(op: Op, iteration: Iteration) -> bool:
    """Whether this is the backward of a copy in the forward pass: it goes when that one goes."""
    if op.phase != "backward" or op.forward_index is None:
        return False
    forward = iteration.ops[op.forward_index]
    return forward is not op and transfer_of(forward) is not None


def is_list_read(op: Op) -> bool:
    """A copy to the host that `Tensor.tolist()` makes: the host reads every value."""
    return bool(written(op.location, frozenset({"tolist"}), frozenset()))


_SCALER_OPERATORS = frozenset({"_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"})

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
    for op in iteration.ops:
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


_Event = TypeVar("_Event", bound=PythonEvent)
# A graph may freeze their value.
_VALUE_EVENTS = (RandomDraw, ClockRead, ItemTaken)


class Source(Struct, frozen=True):
    """A value that came to the host, and where it goes."""

    kind: Literal["device-read", "cpu-read"] | type[PythonEvent]
    flow: Flow


@once
def sources_of(recording: Recording) -> tuple[Source, ...]:
    """Host reads, random draws, clock reads, items taken and reads of CPU tensors; each place once."""
    by_place: dict[tuple[object, bool, Location | None], Source] = {}
    for read in host_reads(recording):
        key = ("device-read", bool(read.flow.branches), read.op.location)
        by_place.setdefault(key, Source("device-read", read.flow))
    for read in cpu_reads(recording):
        by_place.setdefault(("cpu-read", False, read.op.location), Source("cpu-read", read.flow))
    lines = frozenset(line for iteration in recording.captured for line in tensor_lines(iteration))
    for event in host_values(recording):
        flow = flow_from(event.location, event.stack, lines, recording.lines)
        by_place.setdefault((type(event), False, event.location), Source(type(event), flow))
    return tuple(by_place.values())


def host_values(recording: Recording) -> tuple[PythonEvent, ...]:
    """Random draws, clock reads and items taken, from the separate host run."""
    return tuple(event for event in recording.host if isinstance(event, _VALUE_EVENTS))


def host_value_hits(
    recording: Recording,
    kind: type[_Event],
    message: Callable[[_Event], str],
    fix: Callable[[_Event], str] = lambda event: "",
) -> Iterator[Hit]:
    """Hits in every captured iteration: the run that saw the events stands for all of them."""
    for iteration in recording.captured:
        seen: set[tuple[Location | None, int]] = set()
        for event in host_values(recording):
            place = (event.location, event.op_index)
            if isinstance(event, kind) and place not in seen:
                seen.add(place)
                hit = at_event(iteration.index, _within(event, iteration), message(event))
                yield structs.replace(hit, cure=Cure(fix(event)))


def host_hits(
    recording: Recording,
    kind: type[_Event],
    message: Callable[[_Event], str],
    fix: Callable[[_Event], str] = lambda event: "",
) -> Iterator[Hit]:
    """Hits in every captured iteration, for what the run that was watched on the host saw."""
    events = {(e.name, e.location): e for e in recording.host if isinstance(e, kind)}
    for iteration in recording.captured:
        for event in events.values():
            hit = at_event(iteration.index, _within(event, iteration), message(event))
            yield structs.replace(hit, cure=Cure(fix(event)))


def source_place(source: Source | None) -> Location | None:
    return source.flow.origin if source is not None else None


def _within(event: _Event, iteration: Iteration) -> _Event:
    last = max(0, len(iteration.ops) - 1)
    return event if event.op_index <= last else structs.replace(event, op_index=last)
