"""Operators and kernels in total: how often, how long, and by whom they were launched."""

from __future__ import annotations

from graphdoctor.trace import KernelTotal, OperatorTotal, kernel_totals, operator_totals
from tests.support.traces import launch_bound


def test_times_are_in_microseconds_and_summed_over_the_trace() -> None:
    trace = launch_bound(10, steps=2).trace()
    assert operator_totals(trace) == (OperatorTotal("aten::mul", 20, 160.0, 20, 40.0),)
    assert kernel_totals(trace) == (KernelTotal("k", "aten::mul", 20, 40.0),)
