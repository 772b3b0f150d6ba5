"""What cuDNN launches, moves and computes for a convolution, worked out by hand."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.estimate import launches
from graphdoctor.estimate.products import passes, small_bytes
from graphdoctor.values.recording import Arg, Op, TensorUse
from tests.support.builders import op, tensor

IMAGE, WEIGHT, RESULT = tensor(1, 2, 16, 8, 8), tensor(2, 4, 16, 5, 5), tensor(3, 2, 4, 4, 4)


def convolution(
    image: TensorUse = IMAGE,
    weight: TensorUse = WEIGHT,
    *,
    bias: TensorUse | None = None,
    groups: int = 1,
    made: TensorUse = RESULT,
) -> Op:
    rest: tuple[Arg, ...] = ((1, 1), (0, 0), (1, 1), False, (0, 0), groups)
    return op("aten.convolution.default", (image, weight, bias, *rest), (made,))


def backward(*mask: bool, image: TensorUse = IMAGE, weight: TensorUse = WEIGHT) -> Op:
    rest: tuple[Arg, ...] = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, mask)
    made = (image, weight, tensor(9, 4))
    return op("aten.convolution_backward.default", (RESULT, image, weight, *rest), made)


def test_operands_are_turned_to_channels_last_and_the_result_back() -> None:
    operator = convolution()
    assert launches(operator) == 4
    (only,) = passes(operator)
    assert only.layout_bytes == 2 * (IMAGE.nbytes + WEIGHT.nbytes + RESULT.nbytes)
    assert only.flops == 2.0 * RESULT.numel * 16 * 5 * 5


def test_channels_last_pointwise_and_few_channels_are_not_turned() -> None:
    last = replace(IMAGE, stride=(1024, 1, 128, 16))
    assert launches(convolution(last)) == 1
    assert launches(convolution(weight=tensor(2, 4, 16, 1, 1))) == 1
    assert launches(convolution(weight=tensor(2, 4, 16, 5, 1))) == 4  # is no pointwise one
    assert launches(convolution(tensor(1, 2, 3, 8, 8), tensor(2, 4, 3, 5, 5))) == 1
    assert launches(convolution(replace(IMAGE, dtype="float64", itemsize=8))) == 1


def test_depthwise_is_one_kernel_and_groups_one_each() -> None:
    depthwise = convolution(weight=tensor(2, 16, 1, 5, 5), groups=16)
    assert launches(depthwise) == 1
    assert [each.is_depthwise for each in passes(depthwise)] == [True]
    assert launches(convolution(weight=tensor(2, 4, 4, 5, 5), groups=4)) == 4 * 4


def test_a_bias_is_added_by_a_kernel_of_its_own() -> None:
    operator = convolution(bias=tensor(5, 4))
    assert launches(operator) == 5
    assert small_bytes(operator) == 2 * RESULT.nbytes


def test_an_image_in_neither_order_is_copied_first() -> None:
    turned = replace(tensor(1, 2, 16, 8), stride=(128, 1, 16))
    operator = convolution(turned, tensor(2, 4, 16, 1), made=tensor(3, 2, 4, 8))
    assert (launches(operator), small_bytes(operator)) == (2, 2 * turned.nbytes)


def test_backward_makes_what_it_is_asked_for() -> None:
    image_only, weight_only, all_three = (
        backward(True, False, False),
        backward(False, True, False),
        backward(True, True, True),
    )
    assert [launches(each) for each in (image_only, weight_only, all_three)] == [4, 5, 10]
    assert [each.written for each in passes(all_three)] == [IMAGE, WEIGHT]
    assert {each.flops for each in passes(all_three)} == {2.0 * RESULT.numel * 400}
    assert small_bytes(all_three) == RESULT.nbytes


def test_what_is_given_no_operands_launches_nothing_of_its_own() -> None:
    assert passes(op("aten.convolution.default", (IMAGE,), (RESULT,))) == ()
    assert passes(op("aten.convolution_backward.default", (RESULT,), (IMAGE,))) == ()


def test_without_the_bias_nothing_is_summed_up() -> None:
    assert small_bytes(backward(True, True, False)) == 0


def test_a_signal_of_few_channels_is_not_turned_either() -> None:
    signal, weight, made = tensor(1, 2, 3, 64), tensor(2, 4, 3, 5), tensor(3, 2, 4, 60)
    assert launches(convolution(signal, weight, made=made)) == 1


def test_one_channel_in_one_group_is_no_depthwise_convolution() -> None:
    """Depthwise is a group for each of several channels: of one channel it is a convolution as any other."""
    (only,) = passes(convolution(tensor(1, 2, 1, 8, 8), tensor(2, 4, 1, 5, 5)))
    assert not only.is_depthwise


def test_two_channels_next_to_each_other_are_channels_last() -> None:
    """In half precision the backward turns images of few channels, too: not one that lies right."""

    def half(use: TensorUse) -> TensorUse:
        return replace(use, dtype="float16", itemsize=2)

    image, weight = half(tensor(1, 2, 2, 8, 8)), half(tensor(2, 4, 2, 5, 5))
    last = replace(image, stride=(128, 1, 16, 2))
    found = [backward(True, False, False, image=each, weight=weight) for each in (image, last)]
    assert [launches(each) for each in found] == [4, 1]
