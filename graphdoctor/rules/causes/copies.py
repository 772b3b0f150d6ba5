"""Operators -> the copies between host and device that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from graphdoctor.operators.conditions import INDEXING, indexed_from_host
from graphdoctor.rules.causes.source import written
from graphdoctor.values.recording import Iteration, Op, TensorUse

_COPIES_INTO_FIRST = frozenset({"copy_", "_foreach_copy_"})
_MOVES = frozenset({"_to_copy", "to", "copy", "_pin_memory"})


class Transfer(Struct, frozen=True):
    """A tensor that an operator takes across; `hidden` where no copy was written (an index)."""

    op: Op
    source: TensorUse
    to_device: bool
    non_blocking: bool = False
    hidden: bool = False


def transfer_of(op: Op) -> Transfer | None:
    """The copy between host and device that an operator is, or makes inside."""
    if op.base_name in INDEXING:
        return _index_transfer(op)
    if op.base_name not in _COPIES_INTO_FIRST and op.base_name not in _MOVES:
        return None
    inputs = op.inputs
    if op.base_name in _COPIES_INTO_FIRST and len(inputs) >= 2:
        source, target = inputs[-1], inputs[0]
    elif op.base_name in _MOVES and inputs and op.outputs:
        source, target = inputs[0], op.outputs[0]
    else:
        return None
    if source.is_cuda == target.is_cuda or source.numel == 0 or "meta" in target.device:
        return None
    return Transfer(op, source, to_device=target.is_cuda, non_blocking=_non_blocking(op))


def _index_transfer(op: Op) -> Transfer | None:
    """An index, or a value to be stored, that lies on the CPU is copied inside the operator."""
    source = indexed_from_host(op)
    return Transfer(op, source, to_device=True, hidden=True) if source is not None else None


def _non_blocking(op: Op) -> bool:
    named = dict(op.kwargs).get("non_blocking")
    return bool(named) or (op.base_name == "copy_" and len(op.args) > 2 and op.args[2] is True)


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
    makers: dict[int, Op] = {}
    for op in ops:
        if on_gpu and op.base_name == "lift_fresh":
            lifted = op.inputs[0]
            if lifted.is_cuda and lifted.numel and lifted.storage not in makers:
                yield Transfer(op, lifted, to_device=True), True
        transfer = transfer_of(op)
        if transfer is not None:
            yield transfer, transfer.to_device and is_from_python_data(transfer, makers)
        given = frozenset() if op.base_name == "lift_fresh" else op_input_storages(op)
        makers.update((use.storage, op) for use in op.outputs if use.storage not in given)


def op_input_storages(op: Op) -> frozenset[int]:
    return frozenset(use.storage for use in op.inputs)


def undoes_a_copy(op: Op, iteration: Iteration) -> bool:
    """Whether this is the backward of a copy in the forward pass: it goes when that one goes."""
    if op.phase != "backward" or op.forward_index is None:
        return False
    forward = iteration.ops[op.forward_index]
    return forward is not op and transfer_of(forward) is not None


def is_list_read(op: Op) -> bool:
    """A copy to the host that `Tensor.tolist()` makes: the host reads every value."""
    return bool(written(op.location, frozenset({"tolist"}), frozenset()))
