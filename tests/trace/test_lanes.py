"""Lanes: every nanosecond of a device's span is busy or idle for one named cause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.trace import Lanes, Trace, lanes
from graphdoctor.trace.explain.gaps import gaps
from tests.support.traces import TraceBuilder

READ = "Memcpy DtoH (Device -> Pageable)"


def test_a_kernel_that_waits_for_its_launch_shows_host_and_launch_time() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.launch((60, 5), (100, 10))
    assert lanes(builder.trace()) == Lanes(
        busy_ns=20_000, host_ns=40_000, launch_path_ns=40_000, events=2, launches=2, joined=2
    )


def test_a_gap_between_queued_kernels_is_the_devices_own() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.launch((6, 3), (23, 7))
    found = lanes(builder.trace())
    assert found.device_gap_ns == 3_000
    assert found.launch_bound_ns == 0


def test_a_wait_for_the_device_is_told_apart_from_slow_launches() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.call("cudaStreamSynchronize", 6, 44)
    builder.launch((70, 5), (100, 10))
    found = lanes(builder.trace())
    assert (found.sync_wait_ns, found.host_ns, found.launch_path_ns) == (30_000, 20_000, 30_000)


def test_a_driver_call_inside_a_longer_wait_does_not_hide_it() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.call("cudaDeviceSynchronize", 6, 44)
    builder.call("cuStreamSynchronize", 7, 1, "cuda_driver")
    builder.launch((70, 5), (100, 10))
    assert lanes(builder.trace()).sync_wait_ns == 30_000


def test_reading_a_value_is_a_wait_too() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.copy(builder.call("cudaMemcpyAsync", 6, 44), 20, 2, name=READ)
    builder.launch((70, 5), (100, 10))
    found = lanes(builder.trace())
    assert (found.sync_wait_ns, found.host_ns, found.launch_path_ns) == (28_000, 20_000, 30_000)


def test_a_wait_of_another_thread_explains_nothing() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.call("cudaStreamSynchronize", 6, 44, thread=2)
    builder.launch((70, 5), (100, 10))
    found = lanes(builder.trace())
    assert (found.sync_wait_ns, found.host_ns) == (0, 50_000)


def test_a_kernel_without_a_launch_is_unattributed() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    builder.kernel(None, 100, 10)
    found = lanes(builder.trace())
    assert (found.unattributed_ns, found.launches, found.joined) == (80_000, 1, 1)


def test_overlapping_streams_are_busy_once() -> None:
    builder = TraceBuilder()
    builder.kernel(1, 0, 50)
    builder.kernel(2, 10, 20, stream=8)
    builder.kernel(3, 40, 20)
    found = lanes(builder.trace())
    assert (found.busy_ns, found.span_ns) == (60_000, 60_000)


def test_the_nodes_of_a_graph_share_one_launch_and_the_gaps_between_them_are_known() -> None:
    builder = TraceBuilder()
    call = builder.call("cudaGraphLaunch", 0, 5)
    for start, length in ((10, 10), (21, 9), (32, 8)):
        builder.kernel(call, start, length)
    builder.launch((1, 2), (45, 5))
    found = lanes(builder.trace())
    assert (found.device_gap_ns, found.in_graph_ns) == (8_000, 3_000)
    assert (found.launches, found.events) == (2, 4)


def test_a_correlation_id_that_two_calls_share_means_the_last_before_the_kernel() -> None:
    builder = TraceBuilder()
    builder.launch((0, 5), (10, 10))
    for start in (30, 60, 200):
        builder.call("cudaLaunchKernel", start, 5, correlation=77)
    builder.kernel(77, 100, 10)
    builder.call("cudaStreamSynchronize", 62, 2, correlation=77)
    assert lanes(builder.trace()).host_ns == 40_000


def test_no_device_events_give_no_time() -> None:
    builder = TraceBuilder()
    builder.call("cudaLaunchKernel", 0, 5)
    assert lanes(builder.trace()) == Lanes()


def test_the_busiest_device_is_taken() -> None:
    builder = TraceBuilder()
    builder.kernel(None, 0, 500, device=1)
    builder.kernel(None, 10, 10)
    builder.kernel(None, 30, 10)
    assert lanes(builder.trace()).events == 2


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    builder = TraceBuilder()
    moments = st.integers(0, 400)
    names = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaStreamSynchronize")
    for _ in range(draw(st.integers(0, 8))):
        builder.call(
            draw(st.sampled_from((*names, "hipDeviceSynchronize", "cuLaunchKernelEx"))),
            draw(moments) / 1000,
            draw(st.integers(0, 80)) / 1000,
            thread=draw(st.sampled_from((1, 2))),
            correlation=draw(st.integers(1, 8)),
        )
    for _ in range(draw(st.integers(1, 12))):
        correlation = draw(st.one_of(st.none(), st.integers(1, 8)))
        start, length = draw(moments) / 1000, draw(st.integers(0, 60)) / 1000
        stream = draw(st.sampled_from((7, 8)))
        if correlation is not None and draw(st.booleans()):
            builder.copy(correlation, start, length, name=READ)
        else:
            builder.kernel(correlation, start, length, stream=stream)
    return builder.trace()


@given(traces())
def test_busy_and_idle_sum_to_the_span_to_the_nanosecond(sample: Trace) -> None:
    found = lanes(sample)
    events = sample.device_events
    start, end = int(events.start_ns.min()), int(events.end_ns.max())
    spans = list(zip(events.start_ns.tolist(), events.end_ns.tolist(), strict=True))
    busy = sum(any(low <= at < high for low, high in spans) for at in range(start, end))
    assert found.busy_ns == busy
    assert found.span_ns == end - start
    parts = (found.host_ns, found.launch_path_ns, found.sync_wait_ns, found.device_gap_ns)
    assert min(*parts, found.unattributed_ns) >= 0
    assert sum(parts) + found.unattributed_ns == end - start - busy


@given(traces())
def test_the_causes_of_every_single_gap_sum_to_its_length(sample: Trace) -> None:
    found = gaps(sample, 0)
    causes = found.host_ns + found.launch_path_ns + found.sync_wait_ns + found.device_gap_ns
    assert (causes + found.unattributed_ns).tolist() == (found.end_ns - found.start_ns).tolist()
    assert all(value >= 0 for value in found.host_ns.tolist() + found.launch_path_ns.tolist())


def test_work_that_waits_behind_an_event_is_queued_and_not_on_its_way() -> None:
    """The host launched in 5 us; that the device began 40 ms later is not the launch's doing."""
    builder = TraceBuilder()
    for place in range(10):
        builder.launch((place * 20.0, 5), (place * 20.0 + 8, 4))
    builder.call("hipStreamWaitEvent", 200, 2)
    builder.launch((203, 5), (40_200, 10))
    found = lanes(builder.trace())
    assert found.device_gap_ns == 40_200_000 - 208_000 - 20_000
    assert found.launch_path_ns == 9 * 8_000 + 5_000 + 20_000
    assert found.host_ns == 9 * 8_000 + 11_000
