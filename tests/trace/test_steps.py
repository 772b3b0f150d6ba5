"""Which steps of a trace count, and why the others do not."""

from __future__ import annotations

import pytest

from graphdoctor.trace import Trace
from graphdoctor.trace.steps import OTHER, Steps, find_steps
from graphdoctor.values.errors import UsageError
from tests.support.traces import TraceBuilder


def steps_of(lengths: list[tuple[float, int]], *, pause: float = 0.0) -> TraceBuilder:
    """Steps of so many us in which so many kernels are launched, the first 1 us after its begin."""
    builder = TraceBuilder()
    begin = 1000.0
    for number, (length, kernels) in enumerate(lengths):
        builder.step(number, begin, length)
        for index in range(kernels):
            at = begin + 1 + index * (length - 4) / max(kernels, 1)
            builder.launch((at, 1), (at + 2, 1))
        begin += length + pause
    return builder


def found(builder: TraceBuilder) -> Steps:
    trace = builder.trace()
    return find_steps(trace, 0)


def reasons(steps: Steps) -> list[str]:
    return [step.left_out.partition(":")[0] for step in steps.all]


def test_a_step_reaches_from_its_first_kernel_to_that_of_the_next() -> None:
    steps = found(steps_of([(100, 4), (100, 4), (100, 4)]))
    assert steps.basis == "annotations"
    assert [step.window for step in steps.all] == [
        (1_003_000, 1_103_000), (1_103_000, 1_203_000), (1_203_000, 1_276_000),
    ]  # fmt: skip
    assert [step.host for step in steps.all] == [
        (1_000_000, 1_100_000), (1_100_000, 1_200_000), (1_200_000, 1_300_000),
    ]  # fmt: skip
    assert [step.kernels for step in steps.all] == [4, 4, 4]
    assert steps.counted == steps.all


@pytest.mark.parametrize(("first", "is_left_out"), [(200, False), (201, True)])
def test_a_first_step_of_more_than_twice_the_others_time_is_a_warm_up(
    first: float, is_left_out: bool
) -> None:
    steps = found(steps_of([(first, 4), (103, 4), (100, 4), (128, 4)]))
    lengths = sorted(step.window[1] - step.window[0] for step in steps.all[1:])
    assert lengths == [94_000, 100_000, 103_000]
    assert [bool(step.left_out) for step in steps.all] == [is_left_out, False, False, False]
    assert "warm-up" in reasons(steps)[0] or not is_left_out


def test_two_steps_are_too_few_to_call_the_first_a_warm_up() -> None:
    assert reasons(found(steps_of([(900, 4), (100, 4)]))) == ["", ""]
    assert reasons(found(steps_of([(900, 4), (100, 4), (100, 4)])))[0] == "it is a warm-up"


def test_a_long_later_step_counts() -> None:
    assert reasons(found(steps_of([(100, 4), (900, 4), (100, 4), (100, 4)]))) == [""] * 4


def test_code_that_is_loaded_in_the_first_step_alone_makes_it_a_warm_up() -> None:
    builder = steps_of([(100, 4)] * 4)
    builder.overhead("Lazy Function Loading", 1050, 5)
    assert reasons(found(builder)) == ["it is a warm-up", "", "", ""]
    builder.overhead("Lazy Function Loading", 1150, 5)
    assert reasons(found(builder)) == [""] * 4
    late = steps_of([(100, 4)] * 4)
    late.overhead("Lazy Function Loading", 1100, 5)  # where the second step begins
    assert reasons(found(late)) == [""] * 4
    other = steps_of([(100, 4)] * 4)
    other.overhead("Buffer Flush", 1050, 5)
    assert reasons(found(other)) == [""] * 4


@pytest.mark.parametrize(
    ("kernels", "is_left_out"), [(7, False), (14, False), (6, True), (15, True)]
)
def test_a_step_is_of_the_first_ones_kind_if_seven_of_ten_kernels_are_the_same(
    kernels: int, is_left_out: bool
) -> None:
    """Seven and ten of a name have seven of ten in common, six and ten have six of ten."""
    steps = found(steps_of([(100, 10), (100, kernels), (100, 10)]))
    reason = f"it is of another kind: {kernels} device events, the others have 10"
    assert [step.left_out for step in steps.all] == ["", reason if is_left_out else "", ""]
    assert [step.kind for step in steps.all] == [0, int(is_left_out), 0]


def test_the_reason_names_the_fewest_and_the_most_of_the_kind_that_counts() -> None:
    steps = found(steps_of([(100, 4), (100, 5), (100, 2), (100, 4)]))
    assert [step.left_out for step in steps.all] == [
        "", "", "it is of another kind: 2 device events, the others have 4 to 5", "",
    ]  # fmt: skip


def test_a_step_of_as_many_kernels_of_other_names_is_of_another_kind() -> None:
    builder = TraceBuilder()
    for number, name in enumerate(("train", "train", "test")):
        begin = 1000.0 + number * 100
        builder.step(number, begin, 100)
        for at in (begin + 1, begin + 20, begin + 40):
            builder.kernel(builder.call("cudaLaunchKernel", at, 1), at + 2, 1, name=name)
    assert [step.left_out for step in found(builder).all] == [
        "", "", "it is of another kind: 3 device events, the others have 3 of other names",
    ]  # fmt: skip


def test_the_kind_of_most_steps_counts_and_of_two_with_as_many_the_larger() -> None:
    steps = found(steps_of([(100, 4), (100, 8)]))
    assert [step.name for step in steps.counted] == ["ProfilerStep#1"]
    assert steps.all[0].left_out == "it is of another kind: 4 device events, the others have 8"
    most = found(steps_of([(100, 4), (100, 8), (100, 4)]))
    assert [step.name for step in most.counted] == ["ProfilerStep#0", "ProfilerStep#2"]
    assert [step.kind for step in most.all] == [0, 1, 0]


def test_beyond_sixteen_kinds_a_step_is_of_no_kind() -> None:
    builder = TraceBuilder()
    begin = 1000.0
    for number in range(18):
        builder.step(number, begin, 100)
        builder.kernel(
            builder.call("cudaLaunchKernel", begin + 1, 1), begin + 3, 1, name=f"k{number}"
        )
        begin += 100
    assert [step.kind for step in found(builder).all] == [*range(16), OTHER, OTHER]


def test_a_step_without_kernels_is_left_out() -> None:
    steps = found(steps_of([(100, 4), (100, 0), (100, 4)]))
    assert steps.all[1].left_out == "it launched nothing on this device"
    assert [step.name for step in steps.counted] == ["ProfilerStep#0", "ProfilerStep#2"]
    assert steps.all[0].window == (1_003_000, 1_076_000)  # to its own end: none follows


def test_one_step_can_be_asked_for() -> None:
    trace = steps_of([(100, 4), (100, 5), (100, 0)]).trace()
    (step,) = find_steps(trace, 0, only=1).counted
    assert (step.name, step.kernels) == ("ProfilerStep#1", 5)
    for missing in (2, 7):
        with pytest.raises(UsageError, match=f"ProfilerStep#{missing} .*: 0, 1, 2"):
            find_steps(trace, 0, only=missing)


def repeating(units: int, length: int, *, before: int = 0) -> Trace:
    """Kernels k0, k1, ... over and over, 10 us apart, after some that are alone of their kind."""
    builder = TraceBuilder()
    names = [f"alone{at}" for at in range(before)] + [f"k{at}" for at in range(length)] * units
    for place, name in enumerate(names):
        start = 100.0 + place * 10
        builder.kernel(builder.call("cudaLaunchKernel", start, 2), start + 4, 3, name=name)
    return builder.trace()


@pytest.mark.parametrize(
    ("units", "length", "basis"),
    [(3, 8, "repeating launches"), (2, 8, "whole span"), (3, 7, "whole span"),
     (5, 9, "repeating launches")],
)  # fmt: skip
def test_without_annotations_a_unit_of_eight_launches_must_repeat_three_times(
    units: int, length: int, basis: str
) -> None:
    steps = find_steps(repeating(units, length), 0)
    assert steps.basis == basis
    assert len(steps.all) == (units if basis == "repeating launches" else 1)


def test_repetitions_begin_with_their_first_kernel_and_launch() -> None:
    steps = find_steps(repeating(3, 8), 0).all
    assert [step.name for step in steps] == ["repetition 0", "repetition 1", "repetition 2"]
    assert [step.window for step in steps] == [
        (104_000, 184_000), (184_000, 264_000), (264_000, 337_000),
    ]  # fmt: skip
    assert [step.host for step in steps] == [
        (100_000, 180_000), (180_000, 260_000), (260_000, 332_000),
    ]  # fmt: skip
    assert [step.kernels for step in steps] == [8, 8, 8]


def test_the_whole_span_is_all_of_the_device_and_of_the_host() -> None:
    (step,) = find_steps(repeating(1, 3), 0).all
    assert (step.window, step.host, step.kernels) == ((104_000, 127_000), (100_000, 122_000), 3)
