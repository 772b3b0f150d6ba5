"""Profiler traces of one GPU in, the figures of a device profile that they show out.

    python benchmarks/fit_profile.py TRACE.json.gz ... --memory-gb-s 3350 --bf16-tflops 989.4

Prints count, 10th percentile, median and 90th percentile of each figure. The host figures are as
profiled; torch.profiler slows the host by 1.7 (plain) to 2.3 times (shapes, stacks and memory).
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from trace_ops import TracedOp, traced_ops

from graphdoctor.estimate.kernels import kernel_kind
from graphdoctor.estimate.work import bytes_moved, matrix_flops
from graphdoctor.trace import ApiCall, OperatorEvent, Trace, read_trace

_LARGE_BYTES = 10_000_000
_SMALL_BYTES = 600_000
_LARGE_FLOPS = 10e9
_IDLE_NS = 20_000
_HOST_OPERATORS = ("add", "mul", "copy_", "gelu", "mm", "bmm", "view", "as_strided", "empty")

Samples = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--memory-gb-s", type=float, required=True, help="the data sheet's peak")
    parser.add_argument("--bf16-tflops", type=float, required=True, help="the data sheet's peak")
    options = parser.parse_args()
    samples: Samples = defaultdict(list)
    for path in options.traces:
        trace = read_trace(path)
        _host(trace, samples)
        _launches(trace, samples)
        _queue_gaps(trace, samples)
        for traced in traced_ops(trace):
            _kernel(traced, samples, options.memory_gb_s, options.bf16_tflops)
    for name in sorted(samples):
        values = sorted(samples[name])
        low, mid, high = (values[int(len(values) * share)] for share in (0.1, 0.5, 0.9))
        print(f"{name:44} n={len(values):5}  p10 {low:9.3f}  median {mid:9.3f}  p90 {high:9.3f}")


def _host(trace: Trace, samples: Samples) -> None:
    """Time inside operators without other operators, less the CUDA calls in them."""
    for operator, calls in _leaves(trace):
        launches = sum("Launch" in call.name for call in calls)
        inside = sum(call.end_ns - call.start_ns for call in calls)
        own_us = (operator.end_ns - operator.start_ns - inside) / 1e3
        name = operator.name.partition("::")[2]
        if launches == 1:
            samples["host, operator with one launch, us"].append(own_us)
        if name in _HOST_OPERATORS:
            samples[f"host, aten::{name}, us"].append(own_us)


def _leaves(trace: Trace) -> Iterator[tuple[OperatorEvent, list[ApiCall]]]:
    for thread in {operator.thread for operator in trace.operators}:
        operators = [item for item in trace.operators if item.thread == thread]
        calls = [call for call in trace.calls if call.thread == thread]
        starts = [call.start_ns for call in calls]
        following = [*operators[1:], None]
        for operator, after in zip(operators, following, strict=True):
            if after is None or after.start_ns >= operator.end_ns:
                first = bisect_left(starts, operator.start_ns)
                yield operator, calls[first : bisect_left(starts, operator.end_ns)]


def _launches(trace: Trace, samples: Samples) -> None:
    calls = {call.correlation: call for call in trace.calls}
    for call in trace.calls:
        if "Launch" in call.name or "Synchronize" in call.name or "Memcpy" in call.name:
            samples[f"call, {call.name}, us"].append((call.end_ns - call.start_ns) / 1e3)
    end = 0
    for event in trace.device_events:
        launch = calls.get(event.correlation)
        if launch is not None and event.start_ns > end + _IDLE_NS and event.kind == "kernel":
            latency = (event.start_ns - launch.start_ns) / 1e3
            samples["launch to kernel on an idle device, us"].append(latency)
        end = max(end, event.end_ns)


def _queue_gaps(trace: Trace, samples: Samples) -> None:
    calls = {call.correlation: call for call in trace.calls}
    for before, event in zip(trace.device_events, trace.device_events[1:], strict=False):
        launch = calls.get(event.correlation)
        if launch is not None and launch.end_ns < before.end_ns and event.stream == before.stream:
            gap_us = (event.start_ns - before.end_ns) / 1e3
            samples["gap after a queued kernel, us"].append(gap_us)


def _kernel(traced: TracedOp, samples: Samples, memory_gb_s: float, tflops: float) -> None:
    kind = kernel_kind(traced.op)
    moved, flops = bytes_moved(traced.op), matrix_flops(traced.op)
    if moved < _SMALL_BYTES and flops < _LARGE_FLOPS / 100:
        samples[f"smallest kernel, {kind}, us"].append(traced.device_us)
    if moved > _LARGE_BYTES and not flops:
        share = moved / 1e3 / traced.device_us / memory_gb_s
        samples[f"share of memory bandwidth, {kind}"].append(share)
    if flops > _LARGE_FLOPS and traced.op.inputs[0].dtype == "bfloat16":
        samples[f"share of bf16 rate, {kind}"].append(flops / 1e6 / traced.device_us / tflops)


if __name__ == "__main__":
    main()
