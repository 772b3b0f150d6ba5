"""The gradient of an embedding's weights -> the kernels that PyTorch launches for it, and what they take beside data.

Few indices are added up by one kernel, after zeros are written; more, and those of bags, are sorted first
(ATen/native/cuda/Embedding.cu, EmbeddingBag.cu, EmbeddingBackwardKernel.cu). Times are of an H200
(benchmarks/data/kernels_h200_*), where six such kernels without a sort took 4 to 25 us for 128 to 768 indices.
"""

from __future__ import annotations

from graphdoctor.values.recording import Op

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
