"""A matrix product -> its sizes, the kernels that cuBLAS launches for it, and the arithmetic that they do.

Source: the kernels of 660 products of 40 models in eager steps on an H200 (benchmarks/data/kernels_h200_*).
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from graphdoctor.values.recording import Op, TensorUse

PRODUCTS = frozenset(
    {"mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm", "_grouped_mm", "linear"}
    | {"addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"}
)
_ADDED_TO = frozenset({"addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"})
_TILE = 64  # rows and columns that one block of threads computes
_FEW_TILES, _FEWER_TILES = 66, 16  # half, and an eighth, of the multiprocessors of a large GPU
_LONG, _LONGER = 512, 2048
_SHORT = 256  # of few rows a shorter inner size is left in one piece, as ten products of a small decoder's step are
FEW_ROWS = 8  # of a decoder's step: no tensor cores, and the weights are read but once
# A block of threads walks along the inner size, and kernels of float32 that do not fill the GPU take as long as one
# block: 4.6 us for 128, 7.4 us for 256, 22 to 29 us for 768; beyond some length it is split. What lies transposed on
# the left, as for the gradients of weights, is split at once: 4 us for 4,096.
# Of few rows a part is: 9 us for 512, 26 us for 2,048 and 3,136.
_WALK_US, _LONGEST_WALK, _LONGEST_SPLIT = 0.03, 1536, 128
_THIN, _THIN_WALK = 32, 384  # rows; inner size
_ALIGNED_BYTES = 16
# Half-precision kernels for rows that tensor cores cannot load 16 bytes at a time compute whole tiles of so
# many rows and columns: 49 by 49 scores of a window take as long as 128 by 128.
_UNALIGNED_TILE = 128


class Product(Struct, frozen=True):
    """`batches` times `rows` by `inner` with `inner` by `columns`."""

    batches: int
    rows: int
    columns: int
    inner: int
    itemsize: int
    is_transposed: bool  # on the left

    @property
    def flops(self) -> float:
        return 2.0 * self.batches * self.rows * self.columns * self.inner

    @property
    def launches(self) -> int:
        """Where there are too few tiles to fill the GPU, the inner size is split, and the parts are summed up."""
        tiles = self.batches * ceil(self.rows / _TILE) * ceil(self.columns / _TILE)
        if tiles >= _FEW_TILES or min(self.rows, self.columns) == 1:
            return 1
        if self.rows <= FEW_ROWS and self.inner < _SHORT:
            return 1
        if self.itemsize <= 2:
            return 2 if self.inner >= _LONGER and self.rows > FEW_ROWS else 1
        return 1 + (tiles <= _FEWER_TILES) + (self.inner >= _LONG)


def walk_us(product: Product) -> float:
    """The least that one of single or double precision takes; 0.0 of half precision, whose steps are short."""
    if product.itemsize <= 2 or min(product.rows, product.columns) == 1:
        return 0.0
    if product.is_transposed:
        return _WALK_US * min(product.inner, _LONGEST_SPLIT)
    if product.rows <= _THIN:
        rest = max(0, product.inner - _THIN_WALK)
        return _WALK_US * (min(product.inner, _THIN_WALK) + rest / 4)
    return _WALK_US * min(product.inner, _LONGEST_WALK)


def product_of(op: Op) -> Product | None:
    """None for what is no product of matrices."""
    name = op.base_name
    if name not in PRODUCTS or not op.outputs:
        return None
    first = 1 if name in _ADDED_TO else 0
    if len(op.inputs) <= first or not op.inputs[first].shape:
        return None
    left, made = op.inputs[first], op.outputs[0]
    inner = left.shape[-1]
    columns = made.shape[-1] if len(made.shape) > 1 else 1
    batches = made.shape[0] if len(made.shape) == 3 else 1
    summed = left.shape[0] if name == "addbmm" else 1
    rows = made.numel // max(1, columns * batches)
    is_transposed = len(left.stride) > 1 and left.stride[-1] != 1
    return Product(batches * summed, rows, columns, inner, left.itemsize, is_transposed)


def is_unaligned(op: Op) -> bool:
    """Whether a half-precision product has rows that tensor cores cannot load 16 bytes at a time."""
    sides = [use for use in (*op.inputs, *op.outputs) if len(use.shape) >= 2]
    return op.base_name in PRODUCTS and any(use.itemsize == 2 and _is_odd(use) for use in sides)


def computed_flops(op: Op, product: Product) -> float:
    """With those that are thrown away."""
    if not is_unaligned(op):
        return product.flops
    rows, columns = (
        ceil(size / _UNALIGNED_TILE) * _UNALIGNED_TILE for size in (product.rows, product.columns)
    )
    return 2.0 * product.batches * rows * columns * product.inner


def _is_odd(use: TensorUse) -> bool:
    steps = [
        stride
        for size, stride in zip(use.shape[-2:], use.stride[-2:], strict=False)
        if stride > 1 and size > 1
    ]
    return any(stride * use.itemsize % _ALIGNED_BYTES for stride in steps)
