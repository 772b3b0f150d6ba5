"""A foreach or fused operator -> the lists of tensors that it walks together, and its launches."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.values.recording import Op, TensorUse

# ATen/native/cuda/MultiTensorApply.cuh: tensors a launch holds by the number of lists, blocks a
# launch holds, elements a block covers.
_TENSORS_PER_LAUNCH = (110, 64, 48, 36, 30)
_BLOCKS_PER_LAUNCH = 320
ELEMENTS_PER_BLOCK = 65536


def is_foreach(op: Op) -> bool:
    return op.base_name.startswith(("_foreach_", "_fused_ad", "_fused_sgd", "_amp_foreach"))


def foreach_launches(op: Op) -> int:
    """How many launches the operator takes."""
    lists = tensor_lists(op)
    if not lists:
        return 0
    if _is_one_by_one(lists):
        return len(lists[0])
    return launches_over(lists[0], lists=len(lists))


def launches_over(tensors: Sequence[TensorUse], *, lists: int) -> int:
    """How many launches walk so many lists of tensors of these sizes together."""
    per_launch = _TENSORS_PER_LAUNCH[min(lists, len(_TENSORS_PER_LAUNCH)) - 1]
    blocks = sum(-(-use.numel // ELEMENTS_PER_BLOCK) for use in tensors)
    return max(-(-len(tensors) // per_launch), -(-blocks // _BLOCKS_PER_LAUNCH), 1)


def is_of_short_kernels(op: Op) -> bool:
    """Whether its kernels are as those of one small operator, and not an optimizer's."""
    lists = tensor_lists(op)
    # A number in each tensor, as in counts of steps, takes a kernel as short as any.
    are_numbers = bool(lists) and all(use.numel == 1 for use in lists[0])
    return are_numbers or _is_one_by_one(lists)


def _is_one_by_one(lists: Sequence[Sequence[TensorUse]]) -> bool:
    """Whether each tensor is divided by a number of its own, which no kernel does for all together."""
    return (
        len(lists) > 1
        and any(not use.shape for use in lists[1])
        and any(use.shape for use in lists[0])
    )


def tensor_lists(op: Op) -> list[list[TensorUse]]:
    """The lists of tensors that a foreach operator walks together, its results counting as one."""
    found: list[list[TensorUse]] = []
    for arg in (*op.args, *(value for _, value in op.kwargs)):
        if isinstance(arg, tuple):
            uses = [item for item in arg if isinstance(item, TensorUse)]
            if uses:
                found.append(uses)
    if found and not op.writes and op.outputs:
        found.append(list(op.outputs))
    return found
