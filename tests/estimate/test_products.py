"""What a product of matrices launches, and how long its blocks walk; figures of an H200 where they are measured."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.estimate import launches
from graphdoctor.estimate.costs import op_cost
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.products import (
    Product,
    computed_flops,
    is_unaligned,
    product_of,
    walk_us,
)
from graphdoctor.values.recording import Op, TensorUse
from tests.support.builders import op, tensor


def half(number: int, *shape: int) -> TensorUse:
    return replace(tensor(number, *shape), dtype="bfloat16", itemsize=2)


def mm(rows: int, inner: int, columns: int, *, is_half: bool = False) -> Op:
    make = half if is_half else tensor
    inputs = (make(1, rows, inner), make(2, inner, columns))
    return op("aten.mm.default", inputs, (make(3, rows, columns),))


def sized(operator: Op) -> Product:
    found = product_of(operator)
    assert found is not None
    return found


def test_sizes_of_each_kind_of_product() -> None:
    added = op(
        "aten.addmm.default", (tensor(9, 5), tensor(1, 3, 4), tensor(2, 4, 5)), (tensor(3, 3, 5),)
    )
    batched = op(
        "aten.bmm.default", (tensor(1, 2, 3, 4), tensor(2, 2, 4, 5)), (tensor(3, 2, 3, 5),)
    )
    vector = op("aten.mv.default", (tensor(1, 3, 4), tensor(2, 4)), (tensor(3, 3),))
    assert sized(added) == Product(1, 3, 5, 4, 4, False)
    assert sized(batched) == Product(2, 3, 5, 4, 4, False)
    assert sized(vector) == Product(1, 3, 1, 4, 4, False)
    assert product_of(op("aten.mul.Tensor", (tensor(1, 4),), (tensor(3, 4),))) is None


@pytest.mark.parametrize(
    ("operator", "count"),
    [
        (mm(49, 768, 768), 3),  # 4 on an H200: memory set, scaled, multiplied, the epilogue
        (mm(64, 415, 512), 2),  # as there: split, and summed up
        (mm(640, 256, 256), 1),
        (mm(6272, 384, 1536), 1),
        (mm(1, 4096, 4096), 1),  # a vector
        (mm(400, 1024, 256, is_half=True), 1),
        (mm(64, 4096, 256, is_half=True), 2),
        (mm(4, 4096, 256, is_half=True), 1),
        (mm(8, 4096, 256, is_half=True), 1),  # up to 8 rows are few
        (mm(9, 4096, 256, is_half=True), 2),
    ],
)
def test_kernels_by_the_tiles_that_fill_a_gpu(operator: Op, count: int) -> None:
    assert launches(operator) == count


def test_rows_of_half_precision_must_be_multiples_of_16_bytes() -> None:
    assert [is_unaligned(mm(4, inner, 8, is_half=True)) for inner in (8, 12, 16, 17)] == [
        False, True, False, True,
    ]  # fmt: skip
    assert is_unaligned(mm(4, 8, 9, is_half=True))
    assert not is_unaligned(mm(4, 9, 9))
    assert not is_unaligned(op("aten.mul.Tensor", (half(1, 4, 9),), (half(3, 4, 9),)))


def test_unaligned_products_compute_whole_tiles() -> None:
    window = mm(49, 32, 49, is_half=True)
    assert computed_flops(window, sized(window)) == 2.0 * 128 * 128 * 32
    single = mm(49, 32, 49)
    assert computed_flops(single, sized(single)) == 2.0 * 49 * 49 * 32


def test_products_of_float32_take_as_long_as_one_block_walks() -> None:
    """On an H200 7.4 us for an inner size of 256; 4 us for the gradient of a weight over 4,096 rows."""
    assert walk_us(sized(mm(256, 256, 256))) == pytest.approx(7.68)
    assert walk_us(sized(mm(64, 8192, 256))) == walk_us(sized(mm(64, 1536, 256)))
    assert walk_us(sized(mm(32, 3136, 512))) == pytest.approx(32.16)
    assert walk_us(sized(mm(33, 3136, 512))) == walk_us(sized(mm(64, 1536, 256)))
    gradient = mm(64, 4096, 64)
    turned = replace(gradient.inputs[0], stride=(1, 64))
    gradient = replace(gradient, args=(turned, gradient.args[1]))
    assert walk_us(sized(gradient)) == pytest.approx(3.84)
    assert walk_us(sized(mm(256, 256, 256, is_half=True))) == 0.0
    assert walk_us(sized(mm(1, 256, 256))) == 0.0


def test_an_operator_without_its_operands_is_no_product() -> None:
    made = (tensor(3, 3, 5),)
    assert product_of(op("aten.addmm.default", (tensor(9, 5),), made)) is None
    assert product_of(op("aten.mm.default", (), made)) is None


@pytest.mark.parametrize(("rows", "share"), [(1, "stream"), (8, "stream"), (9, "matmul")])
def test_a_decoder_s_product_reads_its_weights_as_a_stream(rows: int, share: str) -> None:
    """Of few rows there is nothing but weights to read; from nine on tensor cores take tiles."""
    profile = load_profile("h200")
    wide = 16_384
    took = op_cost(mm(rows, wide, wide, is_half=True), profile).device_us.mid
    moved = 2 * (wide * wide + 2 * rows * wide)
    rate = profile.memory_gb_s.mid * getattr(profile.memory_share, share).mid
    count = launches(mm(rows, wide, wide, is_half=True))
    floor = profile.smallest_kernel_us.matmul.mid * 0.5 * (count + 1)
    assert took == pytest.approx(floor + moved / 1e3 / rate)


@pytest.mark.parametrize(
    ("rows", "inner", "kernels"),
    [(2, 64, 1), (8, 255, 1), (8, 256, 2), (6, 256, 2), (9, 255, 2), (8, 512, 3)],
)
def test_few_rows_are_split_where_the_inner_size_is_worth_it(
    rows: int, inner: int, kernels: int
) -> None:
    assert sized(mm(rows, inner, 128)).launches == kernels
