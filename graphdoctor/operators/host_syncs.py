"""What the host learns from an operator, and whether the operator makes the host wait for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from graphdoctor.operators.conditions import INDEXING, indexed_from_host
from graphdoctor.operators.table import fact_about, is_listed, waits_in_backward
from graphdoctor.values.recording import Op, TensorUse

COPIES = frozenset({"_to_copy", "copy_"})  # ATen's, which `to()`, `cuda()` and `copy_()` call
_COPIES_INTO_FIRST = frozenset({"copy_", "_foreach_copy_"})
_MOVES = frozenset({"_to_copy", "to", "copy", "_copy_from", "_pin_memory"})
_MAY_TRANSFER = INDEXING | _COPIES_INTO_FIRST | _MOVES

_TAGGED_FOR_NOTHING = frozenset({"one_hot"})  # reads the largest index by an operator of its own


class Transfer(Struct, frozen=True):
    """A tensor that an operator copies between host and device; `hidden` if the step wrote no copy (an index)."""

    op: Op
    source: TensorUse
    to_device: bool
    non_blocking: bool = False
    hidden: bool = False


def transfer_of(op: Op) -> Transfer | None:
    """The copy between host and device that an operator is, or makes inside."""
    name = op.base_name
    if name not in _MAY_TRANSFER:
        return None
    if name in INDEXING:
        index = indexed_from_host(op)
        return Transfer(op, index, to_device=True, hidden=True) if index is not None else None
    inputs = op.inputs
    if name in _COPIES_INTO_FIRST and len(inputs) >= 2:
        source, target = inputs[-1], inputs[0]
    elif name in _MOVES and inputs and op.outputs:
        source, target = inputs[0], op.outputs[0]
    else:
        return None
    if source.is_cuda == target.is_cuda or source.numel == 0 or "meta" in target.device:
        return None
    named = bool(dict(op.kwargs).get("non_blocking"))
    placed = op.base_name == "copy_" and len(op.args) > 2 and op.args[2] is True
    return Transfer(op, source, to_device=target.is_cuda, non_blocking=named or placed)


def host_learns(op: Op) -> Literal["value", "size", ""]:
    """What the operator gives to the host: a tensor's value, the size of its result, or nothing.

    torch's tags are read only for operators that the table does not list: torch tags every call of
    some operators that read in some calls only.
    """
    if is_listed(op.name):
        if fact_about(op, "reads-value") is not None:
            return "value"
        return "size" if fact_about(op, "sizes-result") is not None else ""
    if not op.tags or op.base_name in _TAGGED_FOR_NOTHING:
        return ""
    if "data_dependent_output" in op.tags:
        return "value"
    return "size" if "dynamic_output_shape" in op.tags else ""


def host_waits(op: Op) -> bool:
    """Whether the host waits inside the operator until the device has run it."""
    if not op.is_cuda:
        return False
    transfer = transfer_of(op)
    if transfer is not None:
        return not transfer.non_blocking
    return bool(host_learns(op)) or fact_about(op, "waits", "copies") is not None


def waiting_backwards(ops: Sequence[Op]) -> Iterator[tuple[Op, Op]]:
    """The first backward operator of each forward whose backward waits, with that forward.

    A forward that is not among `ops` is left out.
    """
    waiting = {op.index: op for op in ops if waits_in_backward(op)}
    for op in ops if waiting else ():
        if op.forward_index in waiting and op.is_cuda and op.index != op.forward_index:
            yield op, waiting.pop(op.forward_index)
