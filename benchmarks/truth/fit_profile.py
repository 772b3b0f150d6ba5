"""Profiler traces of one GPU in, the figures of a device profile that they show out.

    python benchmarks/truth/fit_profile.py TRACE.json.gz ... --memory-gb-s 3350 --bf16-tflops 989.4

Prints count, 10th percentile, median and 90th percentile of each figure. The host figures are as
profiled; torch.profiler slows the host by 1.7 (plain) to 2.3 times (shapes, stacks and memory).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from trace_ops import TracedOp, traced_ops
from trace_shapes import shapes_of

from graphdoctor.estimate.costs import bytes_moved, matrix_flops
from graphdoctor.estimate.kernels import kernel_kind
from graphdoctor.trace import Trace, read_trace
from graphdoctor.trace.api import is_blocking, is_launch
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.intervals import covered_ns, nest
from graphdoctor.trace.join import operator_of

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
        for traced in traced_ops(trace, shapes_of(path, trace)):
            _kernel(traced, samples, options.memory_gb_s, options.bf16_tflops)
    for name in sorted(samples):
        values = sorted(samples[name])
        low, mid, high = (values[int(len(values) * share)] for share in (0.1, 0.5, 0.9))
        print(f"{name:44} n={len(values):5}  p10 {low:9.3f}  median {mid:9.3f}  p90 {high:9.3f}")


def _host(trace: Trace, samples: Samples) -> None:
    """Time inside operators without other operators, less the CUDA calls in them."""
    operators, nesting = trace.operators, nest(trace.operators)
    owner = operator_of(trace)
    own = operators.end_ns - operators.start_ns - covered_ns(trace.calls, operators, owner)
    launching = owner[(owner >= 0) & trace.named(trace.calls, is_launch)]
    launches = np.bincount(launching, minlength=len(operators))
    has_inner = np.isin(np.arange(len(operators)), nesting.parent)
    for row in np.flatnonzero(~has_inner).tolist():
        name = trace.names[operators.name[row]].partition("::")[2]
        if launches[row] == 1:
            samples["host, operator with one launch, us"].append(own[row] / 1e3)
        if name in _HOST_OPERATORS:
            samples[f"host, aten::{name}, us"].append(own[row] / 1e3)


def _launches(trace: Trace, samples: Samples) -> None:
    calls = trace.calls
    for name, start, end in zip(calls.name, calls.start_ns, calls.end_ns, strict=True):
        text = trace.names[name]
        if is_launch(text) or is_blocking(text):
            samples[f"call, {text}, us"].append((end - start) / 1e3)
    found = gaps(trace, 0)
    for length, call, end in zip(
        found.end_ns - found.start_ns, found.call, found.end_ns, strict=True
    ):
        if length > _IDLE_NS and call >= 0:
            latency = (end - calls.start_ns[call]) / 1e3
            samples["launch to kernel on an idle device, us"].append(latency)


def _queue_gaps(trace: Trace, samples: Samples) -> None:
    found = gaps(trace, 0)
    samples["gap after a queued kernel, us"] += (
        found.device_gap_ns[found.device_gap_ns > 0] / 1e3
    ).tolist()


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
