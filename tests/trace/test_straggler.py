"""What is said of the rank that the others wait for: its phase, its cause, its kernel."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from graphdoctor.trace.explain.ranks import _cause, _most, _slower_kernel
from graphdoctor.values.locations import Location
from graphdoctor.values.trace import DeviceWork, GapCause, KernelCost, TraceReport
from tests.support.traces import launch_bound
from tests.trace.test_activity import explained


@pytest.mark.parametrize(
    ("times", "phase"), [((51, 49), "forward"), ((50, 50), ""), ((49, 51), "loss"), ((0, 0), "")]
)
def test_a_phase_is_named_that_has_more_than_half_of_the_time(
    times: tuple[int, int], phase: str
) -> None:
    assert _most(["forward", "loss"], np.array(times)) == phase


def test_the_time_of_a_phase_is_that_of_all_its_stretches() -> None:
    assert _most(["a", "b", "a", "c"], np.array([30, 40, 25, 5])) == "a"
    assert _most([], np.zeros(0, np.int64)) == ""


def test_a_cause_is_named_with_its_line_where_these_are_known() -> None:
    cause = GapCause("ordinary", "load", Location("data.py", 7, "load"), 90.0, 0.9)
    assert _cause(cause) == "; 90% of that the host is in load at data.py:7"
    unknown = replace(cause, name="", location=None)
    assert _cause(unknown) == "; 90% of that the host is in nothing that the profiler recorded"


def kernels(**times: float) -> TraceReport:
    """A rank by the us of its kernels; "nccl" is one of communication."""
    costs = tuple(
        KernelCost(
            name=name,
            family="communication" if name == "nccl" else "other",
            operator="",
            runs=1.0,
            device_us=us,
            share=0.1,
        )
        for name, us in times.items()
    )
    return replace(BASE, work=DeviceWork(kernels=costs))


BASE = explained(launch_bound(4))


@pytest.mark.parametrize("worst", [0, 1, 2])
def test_the_kernel_is_named_that_costs_most_more_than_the_others_in_the_median(worst: int) -> None:
    slow = kernels(gemm=900.0, norm=300.0, nccl=5000.0)
    others = [kernels(gemm=880.0, norm=100.0, nccl=10.0), kernels(gemm=700.0, norm=90.0)]
    reports = [*others[:worst], slow, *others[worst:]]
    assert _slower_kernel(reports, worst) == "; most of it in norm (300 us against 95)"


def test_a_kernel_that_no_other_rank_runs_costs_these_nothing() -> None:
    reports = [kernels(gemm=900.0, extra=50.0), kernels(gemm=880.0), kernels(gemm=870.0)]
    assert _slower_kernel(reports, 0) == "; most of it in extra (50 us against 0)"
    assert _slower_kernel([kernels(nccl=9.0), kernels(nccl=1.0)], 0) == ""
