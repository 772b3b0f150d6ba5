"""The kernels of cuBLAS and cuDNN for a matrix product or a convolution, and what they move and compute."""

from __future__ import annotations

from collections.abc import Iterator
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


FORWARD, BACKWARD = "convolution", "convolution_backward"
_LAYOUT_KERNELS = 3  # to NHWC: the two that are read; and the result back
_FEWEST_CHANNELS = 8  # of an image that is worth turning: one with fewer is read as it lies
_NO_TENSOR_CORES = frozenset({"float64"})


class Pass(Struct, frozen=True):
    """One of the products that a convolution is made of: `read` two tensors, write one.

    `launches` and `layout_bytes` are those of turning them to NHWC and back, too.
    """

    launches: int
    read: tuple[TensorUse, TensorUse]
    written: TensorUse
    flops: float
    layout_bytes: int
    is_depthwise: bool

    @property
    def nbytes(self) -> int:
        return self.written.nbytes + sum(use.nbytes for use in self.read)


def is_convolution(op: Op) -> bool:
    return op.base_name in (FORWARD, BACKWARD)


def passes(op: Op) -> tuple[Pass, ...]:
    """The forward's one; of the backward, the image's gradient and the weight's, as they are asked for."""
    return tuple(_passes(op))


def small_launches(op: Op) -> int:
    """The bias, which is added or summed up by itself, and a copy of an image that lies in neither order."""
    if op.base_name == BACKWARD:
        mask = _arg(op, 10)
        return 1 if isinstance(mask, tuple) and mask[2:3] == (True,) else 0
    has_bias = len(op.inputs) > 2
    image = op.inputs[0] if op.inputs else None
    return has_bias + (image is not None and not _lies_in_order(image))


def small_bytes(op: Op) -> int:
    """What those move."""
    if op.base_name == BACKWARD:
        return op.inputs[0].nbytes * small_launches(op) if op.inputs else 0
    bias = 2 * op.outputs[0].nbytes if len(op.inputs) > 2 and op.outputs else 0
    image = op.inputs[0] if op.inputs else None
    return bias + (2 * image.nbytes if image is not None and not _lies_in_order(image) else 0)


def _passes(op: Op) -> Iterator[Pass]:
    inputs = op.inputs
    if op.base_name == FORWARD:
        if len(inputs) >= 2 and op.outputs:
            yield _pass(op, inputs[0], inputs[1], inputs[0], inputs[1], op.outputs[0])
        return
    if len(inputs) < 3:
        return
    gradient, image, weight = inputs[:3]
    mask = _arg(op, 10)
    asked = mask if isinstance(mask, tuple) and len(mask) == 3 else (True, True, True)
    if asked[0]:
        yield _pass(op, image, weight, gradient, weight, image, result=gradient)
    if asked[1]:
        yield _pass(op, image, weight, gradient, image, weight, result=gradient)


def _pass(
    op: Op,
    image: TensorUse,
    weight: TensorUse,
    first: TensorUse,
    second: TensorUse,
    written: TensorUse,
    *,
    result: TensorUse | None = None,
) -> Pass:
    groups = _groups(op)
    channels = image.shape[1] if len(image.shape) > 2 else 0
    is_depthwise = groups > 1 and groups == channels
    turned = _is_turned(op, image, weight, groups=groups, is_depthwise=is_depthwise)
    is_of_weight = written is weight
    runs = 1 if is_depthwise else groups
    launches = runs * (1 + (_LAYOUT_KERNELS if turned else 0)) + is_of_weight
    moved = 2 * (first.nbytes + second.nbytes + written.nbytes) if turned else 0
    made = result or written
    transposed = _arg(op, 6) is True
    positions = image if transposed else made
    each = weight.numel // weight.shape[0] if weight.shape and weight.shape[0] else 0
    flops = 2.0 * positions.numel * each
    return Pass(launches, (first, second), written, flops, moved, is_depthwise)


def _is_turned(
    op: Op, image: TensorUse, weight: TensorUse, *, groups: int, is_depthwise: bool
) -> bool:
    """Tensor cores want channels last, which PyTorch's default is not; a product of 1x1 needs no order."""
    if image.dtype in _NO_TENSOR_CORES or is_depthwise or _is_channels_last(image):
        return False
    if groups == 1 and all(size == 1 for size in weight.shape[2:]):
        return False
    is_half = image.itemsize == 2
    few = len(image.shape) > 2 and image.shape[1] < _FEWEST_CHANNELS
    return not few or (op.base_name == BACKWARD and is_half)


def _is_channels_last(use: TensorUse) -> bool:
    return len(use.stride) >= 3 and use.stride[1] == 1 and use.shape[1] > 1


def _lies_in_order(use: TensorUse) -> bool:
    return is_contiguous(use) or (len(use.shape) == 4 and _is_channels_last(use))


def is_contiguous(use: TensorUse) -> bool:
    """Whether it lies densely, in order; as a tensor does that has no strides, or none for each dimension."""
    if len(use.stride) != len(use.shape):
        return True
    expected = 1
    for size, stride in zip(reversed(use.shape), reversed(use.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _groups(op: Op) -> int:
    groups = _arg(op, 9 if op.base_name == BACKWARD else 8)
    return groups if isinstance(groups, int) and groups > 0 else 1


def _arg(op: Op, place: int) -> object:
    if op.base_name == BACKWARD and place == 6:  # transposed stands one later there
        place = 7
    return op.args[place] if len(op.args) > place else None
