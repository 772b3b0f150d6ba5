"""What the gradient of an embedding's weights launches and takes; times of an H200."""

from __future__ import annotations

import pytest

from graphdoctor.estimate import launches
from graphdoctor.estimate.costs import op_cost
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.values.recording import Op
from tests.support.builders import op, tensor

H200 = load_profile("h200")


def of_rows(indices: int, rows: int, width: int, *, by_frequency: bool = False) -> Op:
    gradient, where = tensor(1, indices, width), tensor(2, indices, dtype="int64")
    args = (gradient, where, rows, -1, by_frequency)
    return op("aten.embedding_dense_backward.default", args, [tensor(3, rows, width)])


def of_bags(indices: int, rows: int, width: int) -> Op:
    gradient, where = tensor(1, indices, width), tensor(2, indices, dtype="int64")
    return op("aten._embedding_bag_backward.default", [gradient, where], [tensor(3, rows, width)])


def test_few_indices_are_added_up_by_one_kernel_after_zeros_are_written() -> None:
    assert launches(of_rows(3072, 50_000, 64)) == 2


def test_many_indices_and_those_weighed_by_frequency_are_sorted_first() -> None:
    assert launches(of_rows(3073, 50_000, 64)) == launches(of_rows(8, 9, 64, by_frequency=True))
    assert launches(of_rows(3073, 50_000, 64)) > 10


@pytest.mark.parametrize(
    ("gradient", "seen_us"),
    [
        (of_rows(128, 512, 768), 4.8 + 1.2),
        (of_rows(512, 50_000, 64), 14.0 + 5.0),
        (of_rows(640, 8000, 256), 25.2 + 3.3),
        (of_rows(10_240, 50_000, 64), 85.0 + 7.0),
        (of_bags(128, 100, 16), 27.2 + 3.5),
        (of_bags(64, 100_000, 64), 26.3 + 9.0),
    ],
)
def test_times_are_within_a_third_of_what_a_gpu_took(gradient: Op, seen_us: float) -> None:
    assert op_cost(gradient, H200).device_us.mid == pytest.approx(seen_us, rel=1 / 3)
