"""Operators in, the copies between host and device that they make out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from graphdoctor.recording import Iteration, Op, TensorUse
from graphdoctor.rules._source import written

_MASKS = ("bool", "uint8")
_COPIES_INTO_FIRST = frozenset({"copy_", "_foreach_copy_"})
_MOVES = frozenset({"_to_copy", "to", "copy", "_pin_memory"})
INDEXING = frozenset({"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"})


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
    inputs = op.inputs
    if not inputs or not inputs[0].is_cuda:
        return None
    values = None if op.base_name in ("index", "_unsafe_index") else inputs[-1]
    indices = inputs[1:] if values is None else inputs[1:-1]
    for index in indices:
        if not index.is_cuda and index.numel:
            return Transfer(op, index, to_device=True, hidden=True)
    if values is not None and not values.is_cuda and not is_masked_fill(op):
        return Transfer(op, values, to_device=True, hidden=True)
    return None


def is_masked_fill(op: Op) -> bool:
    """`y[mask] = 0.0`: one mask and one value on the host, which torch makes masked_fill."""
    inputs = op.inputs
    if len(inputs) != 3 or inputs[1].dtype not in _MASKS:
        return False
    accumulates = any(arg is True for arg in op.args)
    return inputs[2].numel == 1 and not inputs[2].is_cuda and not accumulates


def has_mask_index(op: Op) -> bool:
    """Indexing by a mask on the device, whose number of hits the host must learn."""
    if op.base_name not in INDEXING:
        return False
    inputs = op.inputs
    indices = inputs[1:] if op.base_name in ("index", "_unsafe_index") else inputs[1:-1]
    return any(use.dtype in _MASKS and use.is_cuda for use in indices)


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
        for use in op.outputs:
            if op.base_name == "lift_fresh" or use.storage not in op_input_storages(op):
                makers[use.storage] = op


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
