"""Lanes: every nanosecond of a device's span is busy or idle for one named cause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.trace import ApiCall, DeviceEvent, Lanes, Trace, lanes

_CALL_NAMES = (
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
)


def trace(events: list[DeviceEvent], calls: list[ApiCall]) -> Trace:
    return Trace(("Test GPU",), tuple(events), tuple(calls), (), ())


def kernel(start: int, end: int, correlation: int | None, *, stream: int = 7) -> DeviceEvent:
    return DeviceEvent("kernel", "k", start, end, 0, stream, correlation)


def launch(start: int, end: int, correlation: int) -> ApiCall:
    return ApiCall("cudaLaunchKernel", start, end, 1, correlation)


def test_a_kernel_that_waits_for_its_launch_shows_host_and_launch_time() -> None:
    found = lanes(
        trace([kernel(10, 20, 1), kernel(100, 110, 2)], [launch(0, 5, 1), launch(60, 65, 2)])
    )
    assert found == Lanes(busy_ns=20, host_cpu_ns=40, launch_path_ns=40, events=2, launches=2)


def test_a_gap_between_queued_kernels_is_the_devices_own() -> None:
    found = lanes(trace([kernel(10, 20, 1), kernel(23, 30, 2)], [launch(0, 5, 1), launch(6, 9, 2)]))
    assert found.device_gap_ns == 3
    assert found.launch_bound_ns == 0


def test_a_wait_for_the_device_is_told_apart_from_slow_launches() -> None:
    wait = ApiCall("cudaStreamSynchronize", 6, 50, 1, 9)
    found = lanes(
        trace([kernel(10, 20, 1), kernel(100, 110, 2)], [launch(0, 5, 1), wait, launch(70, 75, 2)])
    )
    assert (found.sync_drain_ns, found.host_cpu_ns, found.launch_path_ns) == (30, 20, 30)


def test_a_wait_of_another_thread_explains_nothing() -> None:
    wait = ApiCall("cudaStreamSynchronize", 6, 50, 2, 9)
    found = lanes(
        trace([kernel(10, 20, 1), kernel(100, 110, 2)], [launch(0, 5, 1), wait, launch(70, 75, 2)])
    )
    assert (found.sync_drain_ns, found.host_cpu_ns) == (0, 50)


def test_a_kernel_without_a_launch_is_unattributed() -> None:
    found = lanes(trace([kernel(10, 20, 1), kernel(100, 110, None)], [launch(0, 5, 1)]))
    assert (found.unattributed_ns, found.launches) == (80, 1)


def test_overlapping_streams_are_busy_once() -> None:
    found = lanes(trace([kernel(0, 50, 1), kernel(10, 30, 2, stream=8), kernel(40, 60, 3)], []))
    assert (found.busy_ns, found.span_ns) == (60, 60)


def test_the_nodes_of_a_graph_share_one_launch() -> None:
    call = ApiCall("cudaGraphLaunch", 0, 5, 1, 1)
    found = lanes(trace([kernel(10, 20, 1), kernel(21, 30, 1), kernel(32, 40, 1)], [call]))
    assert (found.device_gap_ns, found.launches, found.events) == (3, 1, 3)


def test_no_device_events_give_no_time() -> None:
    assert lanes(trace([], [launch(0, 5, 1)])) == Lanes()


def test_the_busiest_device_is_taken_unless_one_is_named() -> None:
    other = DeviceEvent("kernel", "k", 0, 500, 1, 7, None)
    both = trace([other, kernel(10, 20, None), kernel(30, 40, None)], [])
    assert lanes(both).events == 2
    assert lanes(both, device=1).busy_ns == 500


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    moments = st.integers(0, 400)
    events = [
        DeviceEvent(
            draw(st.sampled_from(("kernel", "memcpy", "memset"))),
            draw(st.sampled_from(("k", "Memcpy DtoH (Device -> Pageable)"))),
            start := draw(moments),
            start + draw(st.integers(0, 60)),
            0,
            draw(st.sampled_from((7, 8))),
            draw(st.one_of(st.none(), st.integers(1, 8))),
        )
        for _ in range(draw(st.integers(1, 12)))
    ]
    calls = [
        ApiCall(
            draw(st.sampled_from(_CALL_NAMES)),
            start := draw(moments),
            start + draw(st.integers(0, 80)),
            draw(st.sampled_from((1, 2))),
            correlation,
        )
        for correlation in range(1, draw(st.integers(0, 8)) + 1)
    ]
    return trace(events, calls)


@given(traces())
def test_busy_and_idle_sum_to_the_span_to_the_nanosecond(sample: Trace) -> None:
    found = lanes(sample)
    start = min(event.start_ns for event in sample.device_events)
    end = max(event.end_ns for event in sample.device_events)
    busy = sum(
        any(event.start_ns <= moment < event.end_ns for event in sample.device_events)
        for moment in range(start, end)
    )
    assert found.busy_ns == busy
    assert found.span_ns == end - start
    assert min(found.host_cpu_ns, found.launch_path_ns, found.sync_drain_ns) >= 0
    assert min(found.device_gap_ns, found.unattributed_ns) >= 0
