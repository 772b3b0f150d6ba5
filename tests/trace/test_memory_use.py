"""Memory of the device that is explained, in its steps; nothing where nobody can tell whose it is."""

from __future__ import annotations

from tests.support.traces import TraceBuilder, launch_bound
from tests.trace.test_device_work import memory
from tests.trace.test_report import explained


def on_device(number: int) -> TraceBuilder:
    """Two steps of one kernel each on this device."""
    builder = TraceBuilder()
    for step in (0, 1):
        begin = 1000.0 + step * 50
        builder.step(step, begin, 50.0)
        builder.kernel(builder.call("cudaLaunchKernel", begin, 2), begin + 5, 9, device=number)
    return builder


def test_memory_is_that_of_the_device_that_is_explained() -> None:
    builder = on_device(1)
    memory(builder, 1004, 600, 1600, device=1)
    memory(builder, 1005, 600, 7600, device=0)
    used = explained(builder).work.memory
    assert used is not None and used.peak_allocated_bytes == 1600


def test_memory_by_other_numbers_than_the_kernels_is_taken_where_there_is_one_device_alone() -> (
    None
):
    builder = on_device(
        2
    )  # as AMD's profiler counts: agents for kernels, visible devices for memory
    memory(builder, 1004, 600, 1600, device=0)
    used = explained(builder).work.memory
    assert used is not None
    assert (used.peak_allocated_bytes, used.growth_bytes) == (1600, 0.0)
    memory(builder, 1005, 600, 7600, device=1)
    assert explained(builder).work.memory is None


def test_memory_that_was_asked_for_outside_of_the_steps_is_none_of_theirs() -> None:
    builder = on_device(0)
    memory(builder, 900, 600, 1600)
    assert explained(builder).work.memory is None


def test_of_one_step_no_growth_is_told() -> None:
    builder = launch_bound(5)
    memory(builder, 1004, 600, 1600)
    used = explained(builder).work.memory
    assert used is not None
    assert (used.growth_bytes, used.reserved_growth_bytes) == (None, None)
    assert used.allocations_in_gaps == 0  # before the first kernel there is no gap
