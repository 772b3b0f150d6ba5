"""Operators -> the copies between host and device that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphdoctor.operators import Transfer, transfer_of
from graphdoctor.rules.causes.source import written
from graphdoctor.values.recording import Iteration, Op


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
