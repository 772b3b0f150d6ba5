"""The kernels that an operator launches on a GPU: how many, and of which kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from graphdoctor.estimate.products import (
    PRODUCTS,
    is_contiguous,
    is_convolution,
    passes,
    product_of,
    small_launches,
)
from graphdoctor.operators import measured_kernels
from graphdoctor.operators.conditions import indexes_by_mask
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


GRADIENTS = ("embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward")
_UNSORTED = 3072  # indices at most
_OF_FEW, _OF_A_BAG, _OF_MANY = 2, 13, 30
_EACH_INDEX_US = 0.027  # one after the other, whatever the rows' length
# CUB sorts few pairs of 64 bits in one block, which took 13.8 us of 64 and of 128 indices; 10,240 took eight passes of
# 5.8 us. What is said here is beyond the smallest kernels.
_ONE_BLOCK = 2304
_SORT_IN_A_BLOCK_US, _SORT_US = 13.0, 50.0


def gradient_launches(op: Op) -> int:
    if op.base_name != GRADIENTS[0]:
        return _OF_A_BAG
    return _OF_MANY if _is_sorted(op) else _OF_FEW


def gradient_us(op: Op) -> float:
    """What its kernels take longer than the smallest ones and their data."""
    if op.base_name == GRADIENTS[0] and not _is_sorted(op):
        return _EACH_INDEX_US * _indices(op)
    return _SORT_IN_A_BLOCK_US if _indices(op) <= _ONE_BLOCK else _SORT_US


def _is_sorted(op: Op) -> bool:
    return _indices(op) > _UNSORTED or True in op.args[4:5]  # scaled by how often each comes


def _indices(op: Op) -> int:
    return op.inputs[1].numel if len(op.inputs) > 1 else 0


KernelKind = Literal[
    "stream",
    "strided",
    "reduce",
    "columns",
    "normalize",
    "concat",
    "gather",
    "matmul",
    "convolution",
    "attention",
    "optimizer",
]


class Kernels(Struct, frozen=True):
    """What one call launches. `count` is the usual number, None for the measured one of the operator table."""

    kind: KernelKind
    count: int | None = None


def _all(kind: KernelKind, names: str, count: int | None = None) -> dict[str, Kernels]:
    return dict.fromkeys(names.split(), Kernels(kind, count))


# Everything that is not one elementwise kernel. A count is given where the operator table has none, or one of test
# inputs that no model has: it counts no copy or fill, and its inputs are small and often strided. Source: launches per
# operator in profiler traces of the H100 (addmm, softmax, layer norm, cat, convolution with layout changes), and the
# launches written in ATen/native/cuda of PyTorch 2.13 for the others.
KERNELS: dict[str, Kernels] = {
    **dict.fromkeys(PRODUCTS, Kernels("matmul", 1)),
    **_all("convolution", "convolution"),
    **_all("convolution", "convolution_backward", 2),
    **_all(
        "strided", "constant_pad_nd slice_backward select_backward as_strided_scatter", 2
    ),  # filled or copied first
    **_all("normalize", "_softmax _log_softmax _batch_norm_with_update cudnn_batch_norm"),
    **_all(
        "normalize",
        "_softmax_backward_data _log_softmax_backward_data native_layer_norm _fused_rms_norm"
        " native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional",
        1,
    ),
    **_all("normalize", "_fused_rms_norm_backward", 2),
    **_all("normalize", "native_group_norm", 3),
    **_all("normalize", "native_group_norm_backward", 5),
    **_all("columns", "native_layer_norm_backward", 2),
    **_all(
        "columns", "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward", 1
    ),
    **_all(
        "reduce",
        "sum mean amax amin max min argmax argmin all any prod norm linalg_vector_norm nansum var"
        " std var_mean std_mean _local_scalar_dense cumsum cumprod nll_loss_forward"
        " nll_loss2d_forward logsumexp",
    ),
    **_all("reduce", "mse_loss equal", 2),
    **_all("reduce", "topk histc bincount", 3),
    **_all("reduce", "sort argsort multinomial randperm", 4),
    **_all("reduce", "_unique2 unique_dim", 8),
    **_all("stream", "_safe_softmax", 1),  # of attention, which a GPU runs as one kernel
    **_all("stream", "nonzero masked_select triu_indices tril_indices linspace"),
    **_all("concat", "stack cat"),
    **_all(
        "gather",
        "index_select embedding index gather take _embedding_bag _embedding_bag_forward_only"
        " scatter_ scatter_add_ index_add_ index_copy_ index_put_ _index_put_impl_",
    ),
    **_all(
        "gather",
        "nll_loss_backward scatter scatter_add index_add index_copy index_put"
        " max_pool2d_with_indices_backward upsample_bilinear2d_backward",
        2,
    ),  # filled or copied first
}

_NO_KERNEL = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "empty_permuted",
        "resize_",
        "set_",
        "record_stream",
        "detach_",
        "lift_fresh",
        "_unsafe_view",
        "squeeze_",
        "unsqueeze_",
        "t_",
        "transpose_",
        "as_strided_",
        "_efficientzerotensor",
        "unsafe_split",
        "unsafe_split_with_sizes",
        "unsafe_chunk",
        "wait_tensor",
    }
)
_ATTENTION_MARKS = ("scaled_dot_product", "flash_attention", "efficient_attention")

# Rows above another that a block of a reduction can walk; more are split over blocks, whose counters are set first.
_MOST_ROWS = 1024
_SUMS = frozenset({"sum", "mean"})
_OF_A_NORM = 2
_MASKS = ("bool", "uint8")
# What `nonzero` launches, and an index by a mask before it gathers, be it for nothing: five steps on an H200.
_COUNTERS, _COUNTED = frozenset({"nonzero", "masked_select"}), 4
_SORTED_FIRST, _SORT = frozenset({"index_put", "index_put_", "_index_put_impl_"}), 6
_NORMS = frozenset({"native_layer_norm", "native_layer_norm_backward"})  # copy what lies otherwise
# cuDNN's kernels for half precision, forward and backward; those of float32 are PyTorch's own.
_HALF_ATTENTION, _ATTENTION = (2, 4), (1, 2)
# ATen/native/cuda/Shape.cu: inputs of one CatArrayBatchedCopy.
_CAT_INPUTS_PER_LAUNCH = 128


def launches(op: Op) -> int:
    """Kernels, copies and fills put on the device; 0 for views and for operators of the CPU."""
    if op.is_cuda and op.kernels is not None:
        return op.kernels
    if not op.is_cuda or op.base_name in _NO_KERNEL or op.is_view:
        return 0
    name = op.base_name
    if is_foreach(op):
        return foreach_launches(op)
    if not op.outputs and not op.writes:
        return usual_count(name) if name in KERNELS else 0
    is_empty = bool(op.outputs) and all(use.numel == 0 for use in op.outputs)
    if name in _COUNTERS or indexes_by_mask(op):  # it first counts the elements of a mask
        return _counting(op) + (0 if is_empty or name == "nonzero" else _stored(op))
    if is_empty:
        return 0
    if name in GRADIENTS:
        return gradient_launches(op)
    if name in ("cat", "stack"):
        return -(-len(op.inputs) // _CAT_INPUTS_PER_LAUNCH)
    if is_convolution(op):
        return sum(each.launches for each in passes(op)) + small_launches(op)
    if (product := product_of(op)) is not None:
        return product.launches
    if is_attention(op):
        is_half = any(use.itemsize == 2 for use in op.inputs)
        return (_HALF_ATTENTION if is_half else _ATTENTION)["backward" in name]
    if name in _SORTED_FIRST:
        return _stored(op)
    if name in _NORMS and op.inputs and not is_contiguous(op.inputs[0]):
        return usual_count(name) + 1
    if name == "native_batch_norm" and op.inputs and op.inputs[0].itemsize == 2:
        return 2  # PyTorch's own: cuDNN's is for float32
    if name == "roll":
        return max(1, len(op.args[1])) if len(op.args) > 1 and isinstance(op.args[1], tuple) else 1
    if is_column_sum(op):
        return 2 if op.inputs[0].numel >= _MOST_ROWS * op.outputs[0].numel else 1
    return usual_count(name)


def usual_count(name: str) -> int:
    """Kernels of one call of an operator, by its name without overload."""
    known = KERNELS.get(name)
    return known.count if known is not None and known.count is not None else measured_kernels(name)


def _counting(op: Op) -> int:
    """Summed up, the sum copied to the host, the positions selected; and made coordinates of several dimensions."""
    masks = [use for use in op.inputs if use.dtype in _MASKS] or list(op.inputs[:1])
    return sum(_COUNTED + (len(use.shape) > 1) for use in masks)


def _stored(op: Op) -> int:
    """Of an index; numbers for the same place are added up, for which the places are sorted."""
    is_sum = op.base_name in _SORTED_FIRST and True in op.args[3:4]
    return usual_count(op.base_name) + (_SORT if is_sum else 0)


def is_attention(op: Op) -> bool:
    return any(mark in op.base_name for mark in _ATTENTION_MARKS)


def kernel_kind(op: Op) -> KernelKind:
    """Which of the profile's kernel figures applies."""
    if is_attention(op):
        return "attention"
    if op.kernels is not None:  # a row's normalization, or a step of a recurrent layer
        return "normalize" if op.kernels <= _OF_A_NORM else "matmul"
    if is_foreach(op):
        return "stream" if is_of_short_kernels(op) else "optimizer"
    if is_column_sum(op):
        return "columns"
    if op.base_name in GRADIENTS or indexes_by_mask(op):
        return "stream"  # short ones; what takes longer stands beside them
    known = KERNELS.get(op.base_name)
    if known is not None:
        return known.kind
    return "stream" if _lie_alike(op) else "strided"


def is_column_sum(op: Op) -> bool:
    """Whether the numbers that are summed up do not lie beside each other: a bias' gradient."""
    if op.base_name not in _SUMS or len(op.args) < 2 or not isinstance(op.args[1], tuple):
        return False
    if not op.inputs or not op.outputs or not op.outputs[0].numel:
        return False
    last = len(op.inputs[0].shape) - 1
    return not {-1, last}.intersection(dim for dim in op.args[1] if isinstance(dim, int))


def _lie_alike(op: Op) -> bool:
    """Whether all operands can be read and written as one run of memory, in the same order."""
    uses = [use for use in (*op.inputs, *op.outputs) if use.numel > 1]
    if not uses:
        return True
    order = _layout(uses[0])
    return all(_layout(use) == order and _is_dense(use) for use in uses)


def _layout(use: TensorUse) -> tuple[tuple[int, int], ...]:
    return tuple(
        (size, stride) for size, stride in zip(use.shape, use.stride, strict=False) if size != 1
    )


def _is_dense(use: TensorUse) -> bool:
    expected = 1
    for size, stride in sorted(_layout(use), key=lambda dimension: dimension[1]):
        if stride != expected:
            return False
        expected *= size
    return True
