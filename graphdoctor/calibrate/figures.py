"""A Machine in, its figures with bounds and sources out, by their path in a device profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median, quantiles

import numpy as np

from graphdoctor.calibrate.machine import Machine
from graphdoctor.calibrate.work import SIDES, TOKENS
from graphdoctor.profiles import DeviceProfile, Figure
from graphdoctor.trace import Trace
from graphdoctor.trace.api import is_blocking, is_kernel_launch, which
from graphdoctor.trace.gaps import gaps
from graphdoctor.trace.join import operator_of

KINDS = ("stream", "strided", "reduce", "normalize", "concat", "gather", "matmul", "attention")
_BANDWIDTH_KINDS = KINDS[:6]
_LEAST = 0.05  # us or share: a difference of two noisy figures may be below zero
Samples = Sequence[float]
Tell = Callable[[str], None]


def calibrate(machine: Machine, base: DeviceProfile, tell: Tell) -> dict[str, Figure]:
    """The machine's own figures; `base` has the data sheet's peaks.

    What cannot be measured here keeps the base's figure, and is not in the result.
    """
    made = _Maker(machine, base)
    for name, measure in (
        ("host costs", made.host),
        ("launches", made.launches),
        ("kernels", made.kernels),
        ("bandwidth", made.bandwidth),
        ("arithmetic", made.arithmetic),
        ("graphs", made.graphs),
        ("copies and waits", made.copies),
    ):
        tell(f"measuring {name}")
        measure()
    return made.figures


class _Maker:
    """Collects figures; every method measures one group of them."""

    def __init__(self, machine: Machine, base: DeviceProfile) -> None:
        self._machine = machine
        self._base = base
        self.figures: dict[str, Figure] = {}

    def host(self) -> None:
        """Costs of operators by what they have to do, as differences between two kinds of them."""
        host = self._machine.host_us
        plain, traced = host("in place"), self._machine.traced("in place")
        self._inflation = _inflation(traced, median(plain))
        launch = [value / self._inflation for value in _launch_us(traced)]
        self._put("launch_us", launch, "cudaLaunchKernel under the profiler, over its slowness")
        cost = _less(plain, median(launch))
        self._put("host_us.operator", cost, "an operator in place, less its launch")
        fresh = _less(host("with result"), median(plain))
        self._put("host_us.allocation", fresh, "an operator with a result, less one in place")
        self._put("host_us.view", host("view"), "Tensor.view")
        self._put("host_us.module_call", host("module"), "a call of nn.Identity")
        recorded = _less(host("recorded"), median(host("not recorded")))
        self._put("host_us.autograd", recorded, "an operator that autograd records, less one not")
        product = _less(host("product"), median(host("with result")))
        self._put("host_us.library_call", product, "a small product, less an elementwise operator")
        foreach = _less(host("foreach"), median(plain))
        self._put("host_us.optimizer_foreach", foreach, "_foreach_add_ of 30 tensors")
        nodes = self._machine.amount("backward")
        back = _less(host("backward"), median(host("forward")))
        per_node = _less([value / nodes for value in back], median(host("not recorded")))
        self._put(
            "host_us.backward_node", per_node, "backward of 50 operators, a node, less its operator"
        )

    def launches(self) -> None:
        trace = self._machine.traced("synchronize")
        self._put(
            "launch_latency_us", _latency_us(trace), "launch to start on an idle device, profiled"
        )
        self._put(
            "sync_us", _sync_us(trace), "from the device's end to the end of the waiting call"
        )

    def kernels(self) -> None:
        for kind in KINDS:
            samples = _kernel_us(self._machine.traced(f"small {kind}"))
            self._put(f"smallest_kernel_us.{kind}", samples, f"kernels of a small {kind} operator")

    def bandwidth(self) -> None:
        peak = self._base.memory_gb_s.mid
        for kind in _BANDWIDTH_KINDS:
            shares = list(self._bandwidth_shares(f"large {kind}", peak))
            if kind == "strided":  # the worst, a transposed operand, and a milder one
                shares += self._bandwidth_shares("large sliced", peak)
            self._put(f"memory_share.{kind}", shares, f"a large {kind} operator over {peak:g} GB/s")

    def _bandwidth_shares(self, work: str, peak: float) -> Iterator[float]:
        moved = self._machine.amount(work)
        return (moved / 1e3 / value / peak for value in self._machine.device_us(work))

    def arithmetic(self) -> None:
        rates = self._base.math_tflops
        shares = [share for side in SIDES for share in self._shares(f"bf16 {side}", rates.bf16.mid)]
        self._put(
            "math_share", shares, f"bf16 products of {SIDES} squared over the data sheet's rate"
        )
        shares = [
            share
            for tokens in TOKENS
            for share in self._shares(f"attention {tokens}", rates.fp16.mid)
        ]
        self._put(
            "attention_share", shares, f"attention over {TOKENS} tokens over the data sheet's rate"
        )

    def _shares(self, work: str, tflops: float) -> Iterator[float]:
        amount = self._machine.amount(work)
        return (amount / 1e6 / value / tflops for value in self._machine.device_us(work))

    def graphs(self) -> None:
        """The gap between nodes from two graphs of different size, so that fixed costs cancel."""
        short, long = (self._machine.device_us(name) for name in ("short graph", "long graph"))
        nodes = self._machine.amount("long graph") - self._machine.amount("short graph")
        kernel = self.figures["smallest_kernel_us.stream"].mid
        slope = [(value - median(short)) / nodes - kernel for value in long]
        self._put("node_gap_us", slope, "time a node of a graph of 2000, less the kernel's")
        launch = self._machine.host_us("short graph")
        self._put("graph_launch_us", launch, "CUDAGraph.replay() of 100 nodes, host time")
        gaps_us = _queue_gaps_us(self._machine.traced("large stream"))
        self._put("queue_gap_us", gaps_us, "between queued kernels, profiled")

    def copies(self) -> None:
        rates = []
        for work in ("upload pinned", "upload pageable", "download pinned"):
            moved = self._machine.amount(work)
            rates += [moved / 1e3 / value for value in self._machine.device_us(work)]
        self._put("copy_gb_s", rates, "64 MB up and down, pinned and pageable")
        self._put("copy_latency_us", self._machine.host_us("read"), "reading one value")

    def _put(self, path: str, samples: Iterable[float], what: str) -> None:
        values = [max(_LEAST, value) for value in samples]
        if not values:
            return
        low, high = _bounds(values)
        mid = median(values)
        machine = self._machine
        source = f"measured by graphdoctor calibrate on {machine.name}, {machine.software}: {what}"
        self.figures[path] = Figure(low, mid, high, source)


def _bounds(values: Samples) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    if len(values) < 2:
        return values[0], values[0]
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def _less(samples: Samples, amount: float) -> list[float]:
    return [value - amount for value in samples]


def _inflation(trace: Trace, plain_us: float) -> float:
    """How many times longer an operator and what surrounds it take under the profiler."""
    starts = np.sort(trace.operators.start_ns)
    if len(starts) < 2:
        return 1.0
    apart_us = float(np.median(np.diff(starts))) / 1e3
    return max(1.0, apart_us / plain_us)


def _launch_us(trace: Trace) -> list[float]:
    calls = trace.calls.take(trace.rows_named(trace.calls, which(trace.names, is_kernel_launch)))
    lengths: list[float] = ((calls.end_ns - calls.start_ns) / 1e3).tolist()
    return lengths


def _kernel_us(trace: Trace) -> list[float]:
    """Kernels that an operator launched: what the profiler itself puts there is left out."""
    events = trace.device_events.take(trace.device_events.kind == 0)
    lengths: list[float] = ((events.end_ns - events.start_ns) / 1e3).tolist()
    return lengths


def _latency_us(trace: Trace) -> list[float]:
    found = gaps(trace, 0)
    direct = np.flatnonzero(found.launch_path_ns > 0)
    issued = trace.calls.start_ns[found.call[direct]] if len(direct) else found.start_ns[:0]
    seen = (issued >= found.start_ns[direct]) & (operator_of(trace)[found.call[direct]] >= 0)
    late: list[float] = ((found.end_ns[direct] - issued)[seen] / 1e3).tolist()
    return late


def _sync_us(trace: Trace) -> list[float]:
    """From the last end on the device before each waiting call's end to that end."""
    waits = trace.calls.take(trace.rows_named(trace.calls, which(trace.names, is_blocking)))
    ends = np.sort(trace.device_events.end_ns)
    place = np.searchsorted(ends, waits.end_ns, side="right") - 1
    known = place >= 0
    late = (waits.end_ns[known] - np.maximum(ends[place[known]], waits.start_ns[known])) / 1e3
    found: list[float] = late.tolist()
    return found


def _queue_gaps_us(trace: Trace) -> list[float]:
    found = gaps(trace, 0)
    queued: list[float] = (found.device_gap_ns[found.device_gap_ns > 0] / 1e3).tolist()
    return queued
