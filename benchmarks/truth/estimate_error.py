"""Profiler traces with recorded shapes in, how far the estimate is from what really happened out.

    python benchmarks/truth/estimate_error.py TRACE.json.gz ... --gpu h100

Device time: predicted and true time of every operator with kernels, and their sums.
Host time: predicted time of all operators, and of each, against the trace's, divided by the
profiler's factor.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path

from trace_ops import TracedOp, host_ops, traced_ops
from trace_shapes import shapes_of

from graphdoctor.estimate import launches, op_cost
from graphdoctor.estimate.gpus import LEVELS, DeviceProfile, load_profile
from graphdoctor.estimate.kernels import kernel_kind
from graphdoctor.estimate.ranges import pooled_width, towards
from graphdoctor.trace import Trace, read_trace
from graphdoctor.trace.explain.hosts import outermost_waits
from graphdoctor.trace.intervals import covered_ns, innermost, nest, own_ns
from graphdoctor.values.recording import Op

_PROFILER_FACTORS = (1.7, 2.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--gpu", default="h100")
    options = parser.parse_args()
    profile = load_profile(options.gpu)
    everything: list[TracedOp] = []
    for path in options.traces:
        trace = read_trace(path)
        shapes = shapes_of(path, trace)
        on_host = host_ops(trace, shapes)
        found = list(traced_ops(trace, shapes))
        everything += found
        print(f"\n{path.name}")
        _print_kinds(found, profile)
        _print_sums(trace, found, profile)
        _print_host(trace, on_host, profile)
        _print_host_operators(trace, on_host, profile)
    print("\nall traces")
    _print_kinds(everything, profile)


def _print_kinds(found: Sequence[TracedOp], profile: DeviceProfile) -> None:
    groups: dict[str, list[TracedOp]] = defaultdict(list)
    for traced in found:
        kind = kernel_kind(traced.op) if launches(traced.op) else "no kernel predicted"
        groups[kind].append(traced)
    unknown = groups.pop("no kernel predicted", [])
    groups["all"] = [traced for group in groups.values() for traced in group]
    names = sorted({traced.op.name for traced in unknown})
    print(f"  operators with kernels for which none was predicted: {len(unknown)} {names}")
    print("  predicted / true device time of one operator")
    for kind, group in sorted(groups.items(), key=lambda item: len(item[1])):
        costs = [op_cost(traced.op, profile).device_us for traced in group]
        ratios = sorted(
            cost.mid / traced.device_us for cost, traced in zip(costs, group, strict=True)
        )
        inside = sum(
            cost.low <= traced.device_us <= cost.high
            for cost, traced in zip(costs, group, strict=True)
        )
        typical = exp(sum(abs(log(ratio)) for ratio in ratios) / len(ratios))
        print(
            f"    {kind:10} n={len(ratios):5}  p10 {_at(ratios, 0.1):5.2f}"
            f"  median {_at(ratios, 0.5):5.2f}  p90 {_at(ratios, 0.9):5.2f}"
            f"  typical factor {typical:4.2f}  inside the range {inside / len(ratios):4.0%}"
        )


def _print_sums(trace: Trace, found: Sequence[TracedOp], profile: DeviceProfile) -> None:
    costs = [op_cost(traced.op, profile) for traced in found]
    true = sum(traced.device_us for traced in found)
    events = trace.device_events
    total = int((events.end_ns - events.start_ns).sum()) / 1e3
    times = [cost.device_us for cost in costs]
    width = pooled_width(times)
    low, mid, high = (sum(towards(time, end, width) for time in times) for end in LEVELS)
    print(
        f"  device time of these: true {true:.0f} us, predicted {mid:.0f} "
        f"({low:.0f} to {high:.0f}), off by {mid / true - 1:+.1%};"
        f" they are {true / total:.0%} of all device time"
    )
    launched, predicted = sum(item.events for item in found), sum(cost.launches for cost in costs)
    print(f"  device events of these: true {launched}, predicted launches {predicted}")


def _print_host(trace: Trace, ops: Sequence[Op], profile: DeviceProfile) -> None:
    """Inside operators only: the Python between them depends on the model, not the profile."""
    costs = [op_cost(op, profile).host_us for op in ops]
    low, mid, high = (sum(getattr(cost, end) for cost in costs) for end in ("low", "mid", "high"))
    true = _inside_ns(trace) / 1e3
    slow, fast = (true / factor for factor in _PROFILER_FACTORS)
    print(
        f"  host time inside operators: {true:.0f} us profiled, so about {fast:.0f} to {slow:.0f};"
        f" predicted {mid:.0f} ({low:.0f} to {high:.0f}) for {len(costs)} operators"
    )


def _print_host_operators(trace: Trace, ops: Sequence[Op], profile: DeviceProfile) -> None:
    """One operator at a time: own time with its launches, by the middle of the profiler's factors."""
    operators, nesting = trace.operators, nest(trace.operators)
    own = own_ns(operators, nesting) / 1e3 / sqrt(_PROFILER_FACTORS[0] * _PROFILER_FACTORS[1])
    ratios = sorted(
        op_cost(op, profile).host_us.mid / own[op.index]
        for op in ops
        if own[op.index] > 0 and launches(op)
    )
    if ratios:
        print(
            f"  predicted / true host time of one operator with kernels, n={len(ratios)}:"
            f"  p10 {_at(ratios, 0.1):.2f}  median {_at(ratios, 0.5):.2f}  p90 {_at(ratios, 0.9):.2f}"
        )


def _inside_ns(trace: Trace) -> int:
    """Time inside outermost operators, less the calls in them that wait."""
    operators, nesting = trace.operators, nest(trace.operators)
    outer = operators.take(nesting.is_outermost)
    waits = outermost_waits(trace)
    around = innermost(outer, nest(outer), waits.start_ns, waits.thread)
    waiting = covered_ns(waits, outer, around)
    return int((outer.end_ns - outer.start_ns - waiting).sum())


def _at(values: Sequence[float], share: float) -> float:
    return values[int(len(values) * share)]


if __name__ == "__main__":
    main()
