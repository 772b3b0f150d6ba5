"""A convolution, or its backward -> the kernels that cuDNN launches for it, and what they move and compute.

Source: the kernels of 200 convolutions of 24 models in eager steps on an H200 (benchmarks/data/kernels_h200_*).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from graphdoctor.values.recording import Op, TensorUse

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
