"""What an operator launches, moves and computes, each figure worked out by hand."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch.utils.flop_counter import flop_registry

from graphdoctor.estimate import launches
from graphdoctor.estimate.costs import (
    bytes_moved,
    longest_block_us,
    matrix_flops,
    touched_bytes,
    walked_us,
)
from graphdoctor.estimate.kernels import KERNELS, kernel_kind, usual_count
from graphdoctor.estimate.products import PRODUCTS
from graphdoctor.values.recording import Arg, Op, TensorUse
from tests.support.builders import op, tensor

# Kernels of one call, and their kind, as PyTorch 2.13 launches them.
LAUNCHED = {
    (1, "concat"): "cat stack",
    (1, "gather"): (
        "_embedding_bag _embedding_bag_forward_only _index_put_impl_ embedding gather index "
        "index_add_ index_copy_ index_put_ index_select scatter_ scatter_add_ take"
    ),
    (1, "matmul"): (
        "_addmm_activation _grouped_mm _int_mm _scaled_mm addbmm addmm addmv baddbmm bmm dot "
        "linear mm mv vdot"
    ),
    (1, "normalize"): (
        "_batch_norm_with_update _fused_rms_norm _log_softmax _log_softmax_backward_data "
        "_native_batch_norm_legit _native_batch_norm_legit_functional _softmax "
        "_softmax_backward_data cudnn_batch_norm native_batch_norm native_layer_norm"
    ),
    (1, "columns"): "batch_norm_backward cudnn_batch_norm_backward native_batch_norm_backward",
    (1, "convolution"): "convolution",
    (1, "reduce"): (
        "_local_scalar_dense all amax amin any argmax argmin cumprod cumsum "
        "linalg_vector_norm max mean min nansum nll_loss2d_forward nll_loss_forward "
        "norm prod std std_mean sum var var_mean"
    ),
    (1, "stream"): "_safe_softmax linspace masked_select nonzero tril_indices triu_indices",
    (2, "gather"): (
        "index_add index_copy index_put max_pool2d_with_indices_backward nll_loss_backward "
        "scatter scatter_add upsample_bilinear2d_backward"
    ),
    (2, "columns"): "native_layer_norm_backward",
    (2, "convolution"): "convolution_backward",
    (2, "normalize"): "_fused_rms_norm_backward",
    (2, "reduce"): "equal mse_loss",
    (2, "strided"): "as_strided_scatter constant_pad_nd select_backward slice_backward",
    (3, "normalize"): "native_group_norm",
    (3, "reduce"): "bincount histc topk",
    (4, "reduce"): "argsort multinomial randperm sort",
    (5, "normalize"): "native_group_norm_backward",
    (8, "reduce"): "_unique2 unique_dim",
    (9, "reduce"): "logsumexp",
}


CONVOLUTIONS = {"convolution", "convolution_backward"}
COUNTING = {"masked_select", "nonzero"}


def half(storage: int, *shape: int) -> TensorUse:
    return tensor(storage, *shape, dtype="float16")


def call(name: str, *inputs: Arg, out: TensorUse | None = None, writes: tuple[int, ...] = ()) -> Op:
    return op(f"aten.{name}.default", inputs, [] if out is None else [out], writes=writes)


def test_every_known_operator_launches_as_many_kernels_of_the_kind() -> None:
    listed = {name: key for key, names in LAUNCHED.items() for name in names.split()}
    assert {name: (usual_count(name), each.kind) for name, each in KERNELS.items()} == listed


@pytest.mark.parametrize(
    "name", sorted(set(KERNELS) - PRODUCTS - {"cat", "stack"} - CONVOLUTIONS - COUNTING)
)
def test_a_known_operator_is_launched_as_often_as_listed(name: str) -> None:
    made = call(name, tensor(1, 8, 8), out=tensor(2, 8, 8))
    assert (launches(made), kernel_kind(made)) == (usual_count(name), KERNELS[name].kind)


MASK, FEW, NONE = tensor(2, 8, dtype="bool"), tensor(3, 5, 4), tensor(3, 0, 4)


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (call("nonzero", MASK, out=tensor(3, 5, 1, dtype="int64")), 4),
        (call("nonzero", tensor(2, 2, 4, dtype="bool"), out=tensor(3, 5, 2, dtype="int64")), 5),
        (call("nonzero", MASK, out=tensor(3, 0, 1, dtype="int64")), 4),
        (call("masked_select", tensor(1, 8), MASK, out=tensor(3, 5)), 5),
        (call("index", tensor(1, 8, 4), (None, MASK), out=FEW), 5),
        (call("index", tensor(1, 8, 4), (None, MASK), out=NONE), 4),
        (call("index", tensor(1, 8, 4), (tensor(2, 5, dtype="int64"),), out=FEW), 1),
        (call("index", tensor(1, 8, 4), (tensor(2, 0, dtype="int64"),), out=NONE), 0),
    ],
)
def test_a_mask_is_counted_before_anything_is_chosen_by_it_be_it_nothing(
    made: Op, count: int
) -> None:
    assert launches(made) == count


IMAGE, WEIGHT, BIAS, RESULT = (
    tensor(1, 2, 3, 8, 8), tensor(2, 4, 3, 5, 5), tensor(3, 4), tensor(4, 2, 4, 4, 4),
)  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (call("convolution", IMAGE, WEIGHT, out=RESULT), 1),
        (call("convolution", IMAGE, WEIGHT, BIAS, out=RESULT), 2),  # the bias is added by one more
        (call("cat", tuple(tensor(at, 2) for at in range(128)), out=tensor(999, 256)), 1),
        (call("cat", tuple(tensor(at, 2) for at in range(129)), out=tensor(999, 258)), 2),
        (call("_scaled_dot_product_flash_attention", tensor(1, 1, 2, 3, 4), out=tensor(2, 4)), 1),
        (call("_flash_attention_backward", tensor(1, 1, 2, 3, 4), out=tensor(2, 4)), 2),
        (call("_flash_attention_backward", half(1, 1, 2, 3, 4), out=half(2, 4)), 4),
        (call("_efficient_attention_forward", tensor(1, 1, 2, 3, 4), out=tensor(2, 4)), 1),
    ],
)
def test_launches_that_depend_on_the_arguments(operator: Op, expected: int) -> None:
    assert launches(operator) == expected


@pytest.mark.parametrize(
    ("lists", "tensors", "expected"),
    # Tensors a launch holds by the number of lists: 110, 64, 48, 36, 30.
    [(1, 110, 1), (1, 111, 2), (2, 64, 1), (2, 65, 2), (3, 48, 1), (3, 49, 2), (4, 36, 1),
     (4, 37, 2), (5, 30, 1), (5, 31, 2), (6, 30, 1), (6, 31, 2)],
)  # fmt: skip
def test_a_launch_of_many_tensors_holds_so_many_of_them(
    lists: int, tensors: int, expected: int
) -> None:
    args = [tuple(tensor(which * 1000 + at, 10) for at in range(tensors)) for which in range(lists)]
    assert launches(op("aten._foreach_addcmul_.List", args, writes=[0])) == expected


@pytest.mark.parametrize(("blocks", "expected"), [(320, 1), (321, 2), (640, 2), (641, 3)])
def test_a_launch_of_many_tensors_covers_so_many_elements(blocks: int, expected: int) -> None:
    one = tensor(1, (blocks - 1) * 65536 + 1)
    assert launches(op("aten._foreach_mul_.Scalar", [(one,)], writes=[1])) == expected


def test_results_of_their_own_are_one_more_list() -> None:
    """65 tensors and their 65 results: two lists, of which a launch holds 64."""
    first = tuple(tensor(at, 4) for at in range(65))
    results = [tensor(100 + at, 4) for at in range(65)]
    assert launches(op("aten._foreach_neg.default", [first], results)) == 2
    assert launches(op("aten._foreach_neg_.default", [first], writes=[0])) == 1


def test_no_tensors_are_no_launch() -> None:
    assert launches(op("aten._foreach_neg_.default", [()], writes=[0])) == 0


# Arithmetic: a multiplication and an addition are two.


@pytest.mark.parametrize(
    ("operator", "flops"),
    [
        (call("mm", tensor(1, 3, 5), tensor(2, 5, 7), out=tensor(3, 3, 7)), 2 * 3 * 5 * 7),
        (call("addmm", tensor(9, 7), tensor(1, 3, 5), tensor(2, 5, 7), out=tensor(3, 3, 7)), 210),
        (call("bmm", tensor(1, 2, 3, 5), tensor(2, 2, 5, 7), out=tensor(3, 2, 3, 7)), 420),
        (
            call("baddbmm", tensor(9, 7), tensor(1, 2, 3, 5), tensor(2, 2, 5, 7),
                 out=tensor(3, 2, 3, 7)),
            420,
        ),
        (  # the products of all batches are added up
            call("addbmm", tensor(9, 7), tensor(1, 2, 3, 5), tensor(2, 2, 5, 7),
                 out=tensor(3, 3, 7)),
            420,
        ),
        (call("mv", tensor(1, 3, 5), tensor(2, 5), out=tensor(3, 3)), 30),
        (call("dot", tensor(1, 5), tensor(2, 5), out=tensor(3)), 10),
        (call("mul", tensor(1, 5), tensor(2, 5), out=tensor(3, 5)), 0),
        # 2 images, 4 channels of 4 x 4 results, each over 3 channels of 5 x 5.
        (call("convolution", IMAGE, WEIGHT, out=RESULT), 2 * (2 * 4 * 4 * 4) * (3 * 5 * 5)),
        (call("convolution_backward", RESULT, IMAGE, WEIGHT, out=IMAGE), 2 * 2 * 128 * 75),
        (  # transposed: each position of the image goes into 3 x 5 x 5 results
            call("convolution", RESULT, WEIGHT, None, (1,), (0,), (1,), True, out=IMAGE),
            2 * 128 * 75,
        ),
        (call("convolution", IMAGE, WEIGHT, None, (1,), (0,), (1,), out=RESULT), 2 * 128 * 75),
        (call("convolution", IMAGE, out=RESULT), 0),
        (  # scores and values: 2 products of 1 x 2 heads x 3 queries x 5 keys x 4
            call("_scaled_dot_product_flash_attention", tensor(1, 1, 2, 3, 4),
                 tensor(2, 1, 2, 5, 4), tensor(3, 1, 2, 5, 4), out=tensor(4, 1, 2, 3, 4)),
            2 * 2 * (2 * 3 * 5 * 4),
        ),
        (  # the backward has five, and its first input is the gradient
            call("_scaled_dot_product_flash_attention_backward", tensor(9, 1, 2, 3, 4),
                 tensor(1, 1, 2, 3, 4), tensor(2, 1, 2, 5, 4), tensor(3, 1, 2, 5, 4),
                 out=tensor(4, 1, 2, 3, 4)),
            5 * 2 * (2 * 3 * 5 * 4),
        ),
        (  # here the keys stand before the heads
            call("_flash_attention_forward", tensor(1, 1, 3, 2, 4), tensor(2, 1, 5, 2, 4),
                 tensor(3, 1, 5, 2, 4), out=tensor(4, 1, 3, 2, 4)),
            2 * 2 * (2 * 3 * 5 * 4),
        ),
        (call("_flash_attention_forward", tensor(1, 1, 3, 2, 4), out=tensor(4, 1, 3, 2, 4)), 0),
    ],
)  # fmt: skip
def test_arithmetic(operator: Op, flops: float) -> None:
    assert matrix_flops(operator) == flops


# Memory: each operand once, 4 bytes an element.


@pytest.mark.parametrize(
    ("operator", "moved"),
    [
        (call("mul", tensor(1, 10), tensor(2, 10), out=tensor(3, 10)), 120),
        (call("mul_", tensor(1, 10), tensor(2, 10), writes=(1,)), 40 + 40 + 40),
        (call("fill_", tensor(1, 10), 1.0, writes=(1,)), 40),
        (call("zeros", out=tensor(1, 10)), 40),
        (call("copy_", tensor(1, 10), tensor(2, 10), out=tensor(1, 10), writes=(1,)), 80),
        # Rows of 3 out of a table of 100: read and written, and the 4 indices of 8 bytes.
        (call("embedding", tensor(1, 100, 3), tensor(2, 4, dtype="int64"), out=tensor(3, 4, 3)),
         2 * 48 + 32),
        # Source and index, of which the source is read, and its place read and written.
        (call("index_add_", tensor(1, 100), tensor(2, 4), writes=(1,)), 3 * 16),
        (call("_embedding_bag", tensor(1, 100, 3), tensor(2, 8, dtype="int64"),
              tensor(4, 2, dtype="int64"), out=tensor(3, 2, 3)), 8 * 12 + 64 + 24),
        (call("_embedding_bag", tensor(1, 100, 3), tensor(2, 8, dtype="int64"),
              out=tensor(3, 2, 3)), 8 * 12 + 64 + 24),
        # Its indices alone, which are then rows of themselves, of 8 bytes each.
        (call("_embedding_bag", tensor(2, 8, dtype="int64"), out=tensor(3, 2, 3)), 64 + 64 + 24),
        (call("_embedding_bag", tensor(1, 100, 3), tensor(2, 8, dtype="int64")), 8 * 12 + 64),
        # A table without rows, and the backward, which reads and writes what it is given.
        (call("_embedding_bag", tensor(1, 0, 3), tensor(2, 8, dtype="int64")), 64),
        (call("_embedding_bag_backward", tensor(1, 10), tensor(2, 4), out=tensor(3, 5)), 76),
        (call("_softmax", tensor(1, 2, 1024), -1, False, out=tensor(2, 2, 1024)), 2 * 8192),
        # 12,288 numbers fill 48 KiB; one more does not fit, and one less is not aligned.
        (call("_softmax", tensor(1, 12288), -1, False, out=tensor(2, 12288)), 2 * 49152),
        (call("_softmax", tensor(1, 12289), -1, False, out=tensor(2, 12289)), 4 * 49156),
        (call("_softmax", tensor(1, 12287), -1, False, out=tensor(2, 12287)), 4 * 49148),
        (call("_log_softmax", tensor(1, 1025), -1, False, out=tensor(2, 1025)), 4 * 4100),
        # All of the result is filled; then what is given is read, and written into its middle.
        (call("constant_pad_nd", tensor(1, 10), (1, 1), out=tensor(2, 12)), 48 + 2 * 40),
        # A negative padding leaves out: what is kept is read and written.
        (call("constant_pad_nd", tensor(1, 10), (-1, -1), out=tensor(2, 8)), 32 + 2 * 32),
        (call("slice_backward", tensor(1, 4), (10,), 0, 0, 4, 1, out=tensor(2, 10)), 40 + 2 * 16),
    ],
)  # fmt: skip
def test_bytes(operator: Op, moved: int) -> None:
    assert bytes_moved(operator) == moved


def test_an_expanded_dimension_is_read_once() -> None:
    expanded = replace(tensor(1, 6, 10), stride=(0, 1))
    assert (touched_bytes(expanded), touched_bytes(tensor(1, 6, 10))) == (40, 240)
    assert touched_bytes(replace(tensor(1, 8), stride=(0,))) == 4


def test_a_sum_over_rows_above_each_other_sets_counters_where_they_are_many() -> None:
    def summed(rows: int, dim: int) -> Op:
        made = tensor(2, 8) if dim == 0 else tensor(2, rows)
        return call("sum", tensor(1, rows, 8), (dim,), out=made)

    assert [launches(summed(rows, 0)) for rows in (1023, 1024)] == [1, 2]
    assert kernel_kind(summed(4, 0)) == "columns"
    assert (launches(summed(4096, 1)), kernel_kind(summed(4096, 1))) == (1, "reduce")
    assert kernel_kind(summed(4, -1)) == "reduce"


def test_numbers_that_are_added_up_by_index_are_sorted_first() -> None:
    indices = (tensor(2, 4, dtype="int64"),)
    added = call("index_put_", tensor(1, 8), indices, tensor(3, 4), True, writes=(1,))
    assert (launches(added), launches(replace(added, args=(*added.args[:3], False)))) == (7, 1)


def test_a_list_divided_by_a_number_for_each_is_divided_one_by_one() -> None:
    tensors, numbers = (tensor(1, 8), tensor(2, 8)), (tensor(3), tensor(4))
    assert launches(call("_foreach_div_", tensors, numbers, writes=(1, 2))) == 2
    assert launches(call("_foreach_div_", tensors, tensors, writes=(1, 2))) == 1


def test_kernels_of_one_number_a_tensor_are_as_short_as_any() -> None:
    """Adam that counts on the device: an H200 took 1.1 us for its counts, 2 us for its moments."""
    counts, weights = (tensor(1), tensor(2)), (tensor(3, 8), tensor(4))
    assert kernel_kind(call("_foreach_sub_", counts, 1, writes=(1, 2))) == "stream"
    assert kernel_kind(call("_foreach_sub_", weights, 1, writes=(3, 4))) == "optimizer"
    assert kernel_kind(call("_foreach_div_", weights, counts, writes=(3, 4))) == "stream"


def test_what_lies_otherwise_is_copied_before_it_is_normalized() -> None:
    given = tensor(1, 4, 8)
    turned = replace(given, stride=(1, 4))
    made = tensor(2, 4, 8)
    found = [launches(call("native_layer_norm", use, (8,), out=made)) for use in (given, turned)]
    assert found == [1, 2]


def test_a_block_of_an_optimizers_kernel_walks_65536_elements() -> None:
    def update(size: int) -> float:
        lists = tuple((tensor(number, size),) for number in range(1, 5))
        return longest_block_us(call("_fused_adam_", *lists, writes=(1, 3, 4)))

    assert update(1000) == pytest.approx(1000 * 7 * 4 / 1e3 / 50)
    assert update(65_536) == update(1_000_000) == pytest.approx(36.7, abs=0.1)
    assert longest_block_us(call("_fused_adam_", writes=(1,))) == 0.0


def test_a_softmax_over_what_lies_apart_is_walked_by_single_threads() -> None:
    def softmax(*shape: int, dim: int = 1) -> float | None:
        return walked_us(call("_log_softmax", tensor(1, *shape), dim, False, out=tensor(2, *shape)))

    assert softmax(8, 30_522, 128) == pytest.approx(39_068, abs=1)
    assert softmax(8, 30_522, 64) is softmax(8, 21, 128) is None
    assert softmax(8, 30_522, dim=-1) is None


@pytest.mark.parametrize("name", ["_softmax_backward_data", "_log_softmax_backward_data"])
def test_its_backward_pass_walks_twice(name: str) -> None:
    """Over the sum and over the result: 18.5 ms on an H200 for 30,522 numbers apart."""
    made = tensor(1, 8, 30_522, 128)
    found = walked_us(call(name, made, tensor(2, 8, 30_522, 128), 1, 6, out=made))
    assert found == pytest.approx(2 * 30_522 * 0.32) == pytest.approx(18_500, rel=0.06)


def test_roll_copies_once_for_each_dimension() -> None:
    """ATen/native/TensorTransformations.cpp: several dimensions are rolled one after the other."""
    given, made = tensor(1, 4, 4), tensor(2, 4, 4)
    rolled = [call("roll", given, shifts, dims, out=made) for shifts, dims in
              (((1,), (0,)), ((1, 2), (0, 1)), ((1,), ()))]  # fmt: skip
    assert [launches(each) for each in rolled] == [1, 2, 1]
    assert launches(call("roll", given, out=made)) == 1


# Kinds.


@pytest.mark.parametrize(
    ("uses", "kind"),
    [
        ((tensor(1, 4, 6), tensor(2, 4, 6)), "stream"),
        ((tensor(1, 4, 6), tensor(2)), "stream"),  # a single number is no operand of memory
        ((tensor(1, 4, 6), replace(tensor(2, 4, 6), stride=(1, 4))), "strided"),
        ((tensor(1, 4, 6), replace(tensor(2, 4, 6), stride=(0, 1))), "strided"),
        ((replace(tensor(1, 4, 6), stride=(12, 2)),) * 2, "strided"),
        ((replace(tensor(1, 4, 6), stride=(1, 4)),) * 2, "stream"),
        ((tensor(1, 4, 1, 6), replace(tensor(2, 4, 1, 6), stride=(6, 99, 1))), "stream"),
    ],
)
def test_operands_in_one_order_are_a_stream(uses: tuple[TensorUse, TensorUse], kind: str) -> None:
    assert kernel_kind(call("mul", uses[0], out=uses[1])) == kind


# Arithmetic, as torch counts it.


@pytest.mark.parametrize(
    ("name", "shapes", "out"),
    [
        ("mm", ((4, 6), (6, 5)), (4, 5)),
        ("addmm", ((5,), (4, 6), (6, 5)), (4, 5)),
        ("bmm", ((3, 4, 6), (3, 6, 5)), (3, 4, 5)),
        ("baddbmm", ((3, 4, 5), (3, 4, 6), (3, 6, 5)), (3, 4, 5)),
    ],
)
def test_products_have_the_arithmetic_that_torch_counts(
    name: str, shapes: tuple[tuple[int, ...], ...], out: tuple[int, ...]
) -> None:
    uses = [tensor(at, *shape) for at, shape in enumerate(shapes)]
    given = [torch.empty(shape, device="meta") for shape in shapes]
    counted = flop_registry[getattr(torch.ops.aten, name)](*given, out_val=torch.empty(out))
    assert matrix_flops(call(name, *uses, out=tensor(9, *out))) == counted


def test_attention_has_the_arithmetic_that_torch_counts() -> None:
    name, shapes = "_scaled_dot_product_flash_attention", ((2, 4, 8, 16), (2, 4, 32, 16))
    query, key = (torch.empty(shape, device="meta") for shape in shapes)
    counted = flop_registry[getattr(torch.ops.aten, name)](query, key, key, out_val=(query,))
    uses = [tensor(at, *shape) for at, shape in enumerate((*shapes, shapes[1]))]
    assert matrix_flops(call(name, *uses, out=tensor(9, *shapes[0]))) == counted
