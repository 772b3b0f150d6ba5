"""Measures a GPU's figures with bounds and sources, and writes them as a device profile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile, Figure
from graphdoctor.measure.calibrate.host import KINDS as HOST_KINDS
from graphdoctor.measure.calibrate.host import MeasuredHost
from graphdoctor.measure.calibrate.work import CHAINS, GRAPHS, MIXED, SIDES, TOKENS
from graphdoctor.trace import Trace
from graphdoctor.trace.api import is_blocking, is_kernel_launch
from graphdoctor.trace.explain.gaps import gaps
from graphdoctor.trace.join import operator_of
from graphdoctor.values.errors import CannotDoItHere
from graphdoctor.values.escape import visible

if TYPE_CHECKING:  # it brings torch, which the text of a profile does without
    from graphdoctor.measure.calibrate.gpu import GpuMachine

Bounds = tuple[float, float, float]
_NODE = "autograd::engine::evaluate_function"


class Burst(Struct, frozen=True):
    """Medians by place in the row, in us. `warm` are the samples of the cheapest place but the first.

    The first call of a row is cold, and late ones may wait for the device: neither is the call's own cost.
    """

    places: tuple[float, ...]
    warm: tuple[float, ...]

    @property
    def cold_us(self) -> float:
        return self.places[0]

    @property
    def warm_us(self) -> float:
        return median(self.warm)


def burst_of(rows: Sequence[Sequence[float]]) -> Burst:
    """`rows`: one row a burst, of two calls or more."""
    columns = list(zip(*rows, strict=True))
    places = [median(column) for column in columns]
    cheapest = min(range(1, len(places)), key=places.__getitem__)
    return Burst(tuple(places), tuple(columns[cheapest]))


def launch_bounds(bursts: Mapping[int, Burst]) -> tuple[Bounds, Bounds]:
    """The fixed cost of launching a graph, and that of one more node, from graphs of several sizes.

    The first launch after a wait is the upper bound of the fixed cost.
    """
    fewest, most = min(bursts), max(bursts)
    few, many = bursts[fewest], bursts[most]
    node = _ordered([(value - few.warm_us) / (most - fewest) for value in many.warm])
    fixed = [value - fewest * max(0.0, node[1]) for value in few.warm]
    low, mid, high = _ordered(fixed)
    return (low, mid, max(high, few.cold_us)), node


def _ordered(values: Sequence[float]) -> Bounds:
    """The least, the median, and what nine of ten samples stay below."""
    ordered = sorted(values)
    return ordered[0], median(ordered), ordered[(len(ordered) * 9 - 1) // 10]


def inflation(trace: Trace, plain_us: float) -> float:
    """How many times longer an operator and what surrounds it take under the profiler."""
    starts = np.sort(trace.operators.start_ns)
    if len(starts) < 2:
        return 1.0
    apart_us = float(np.median(np.diff(starts))) / 1e3
    return max(1.0, apart_us / plain_us)


def launch_us(trace: Trace) -> list[float]:
    calls = trace.calls.take(trace.named(trace.calls, is_kernel_launch))
    lengths: list[float] = ((calls.end_ns - calls.start_ns) / 1e3).tolist()
    return lengths


def kernel_us(trace: Trace) -> list[float]:
    """Kernels that an operator launched: what the profiler itself puts there is left out."""
    events = trace.device_events.take(trace.device_events.kind == 0)
    lengths: list[float] = ((events.end_ns - events.start_ns) / 1e3).tolist()
    return lengths


def node_us(trace: Trace) -> float:
    """From one node of autograd to the next, of those that follow each other at once."""
    nodes = trace.named(trace.operators, lambda name: name.startswith(_NODE))
    starts = np.sort(trace.operators.start_ns[nodes])
    return float(np.median(np.diff(starts))) / 1e3 if len(starts) > 1 else 0.0


def latency_us(trace: Trace) -> list[float]:
    found = gaps(trace, 0)
    direct = np.flatnonzero(found.launch_path_ns > 0)
    issued = trace.calls.start_ns[found.call[direct]] if len(direct) else found.start_ns[:0]
    seen = (issued >= found.start_ns[direct]) & (operator_of(trace)[found.call[direct]] >= 0)
    late: list[float] = ((found.end_ns[direct] - issued)[seen] / 1e3).tolist()
    return late


def sync_us(trace: Trace) -> list[float]:
    """From the last end on the device before each waiting call's end to that end."""
    waits = trace.calls.take(trace.named(trace.calls, is_blocking))
    ends = np.sort(trace.device_events.end_ns)
    place = np.searchsorted(ends, waits.end_ns, side="right") - 1
    known = place >= 0
    late = (waits.end_ns[known] - np.maximum(ends[place[known]], waits.start_ns[known])) / 1e3
    found: list[float] = late.tolist()
    return found


def queue_gaps_us(trace: Trace) -> list[float]:
    found = gaps(trace, 0)
    queued: list[float] = (found.device_gap_ns[found.device_gap_ns > 0] / 1e3).tolist()
    return queued


Call = Callable[[], object]


KINDS = ("stream", "strided", "reduce", "normalize", "concat", "gather", "matmul", "attention")
_BANDWIDTH_KINDS = KINDS[:6]
_LEAST = 0.05  # us or share: a difference of two noisy figures may be below zero
_MOST_SHOWN = 10
_LEAST_NODE = 0.0005  # us that one more node adds to a graph's launch
Samples = Sequence[float]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The figures by path, and what was measured on the way to those that are no plain median."""

    figures: dict[str, Figure]
    seen: tuple[str, ...]


def calibrate(machine: GpuMachine, base: DeviceProfile, tell: Tell) -> Calibrated:
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
        ("gaps between nodes", made.node_gaps),
        ("launches of graphs", made.graph_launches),
        ("copies and waits", made.copies),
    ):
        tell(f"measuring {name}")
        measure()
    return Calibrated(made.figures, tuple(made.seen))


class _Maker:
    """Collects figures; every method measures one group of them."""

    def __init__(self, machine: GpuMachine, base: DeviceProfile) -> None:
        self._machine = machine
        self._base = base
        self.figures: dict[str, Figure] = {}
        self.seen: list[str] = []

    def host(self) -> None:
        """Costs of operators by what they have to do, as differences between two kinds of them."""
        host = self._machine.host_us
        plain, traced = host("in place"), self._machine.traced("in place")
        if not len(traced.device_events):
            raise CannotDoItHere(
                "torch.profiler sees no kernels on this machine, and many figures come from it: "
                "let this process use CUPTI, or calibrate on a machine where it may."
            )
        self._inflation = inflation(traced, median(plain))
        launch = [value / self._inflation for value in launch_us(traced)]
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
        self._backward()

    def _backward(self) -> None:
        """By a longer chain less a shorter one, and by the distance of nodes under the profiler."""
        short, long = (f"backward {length}" for length in CHAINS)
        own = median(self._machine.host_us("not recorded"))
        fixed = median(self._machine.host_us(short))
        more = self._machine.amount(long) - self._machine.amount(short)
        total = [(value - fixed) / more for value in self._machine.host_us(long)]
        profiled = node_us(self._machine.traced(short)) / self._inflation
        self._see("backward, one operator and its node", total)
        self._see("the same by the profiler, over its slowness", [profiled])
        self._see("an operator with a result, which is part of it", [own])
        self._put(
            "host_us.backward_node",
            _less([*total, profiled], own),
            f"backward of {CHAINS[1]} operators less that of {CHAINS[0]}, and by the profiler, a"
            " node, less its operator",
        )

    def launches(self) -> None:
        trace = self._machine.traced("synchronize")
        self._put(
            "launch_latency_us", latency_us(trace), "launch to start on an idle device, profiled"
        )
        self._put("sync_us", sync_us(trace), "from the device's end to the end of the waiting call")

    def kernels(self) -> None:
        for kind in KINDS:
            samples = kernel_us(self._machine.traced(f"small {kind}"))
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

    def node_gaps(self) -> None:
        """What a node takes beyond its kernel's own time, from two sizes, so that fixed costs cancel.

        Trivial kernels follow each other more closely than those of a model do, and no node waits
        longer than a kernel that is queued outside of a graph.
        """
        trivial = self._gap_us(("graph of 100", "graph of 2000"), "in place")
        mixed = self._gap_us(tuple(f"mixed graph of {rounds}" for rounds in MIXED), "mixed kernels")
        queued = queue_gaps_us(self._machine.traced("large stream"))
        self._put("queue_gap_us", queued, "between queued kernels, profiled")
        self._see("gap between nodes of one trivial kernel", trivial)
        self._see("gap between nodes of different kernels", mixed)
        likely = median(mixed)
        self._bounded(
            "node_gap_us",
            (min(median(trivial), likely), likely, max(likely, median(queued or mixed))),
            "time of a node less its kernel's: of trivial kernels, of different ones, and between queued kernels",
        )

    def _gap_us(self, graphs: Sequence[str], kernels: str) -> list[float]:
        machine, (short, long) = self._machine, graphs
        kernel = fmean(kernel_us(machine.traced(kernels)))
        self._see(f"kernels of {kernels}", [kernel])
        fixed = median(machine.device_us(short))
        more = machine.amount(long) - machine.amount(short)
        return [(value - fixed) / more - kernel for value in machine.device_us(long)]

    def graph_launches(self) -> None:
        """The host's cost by the number of nodes, where neither it nor the device waits."""
        bursts = {}
        for nodes in GRAPHS:
            bursts[nodes] = burst_of(self._machine.burst_us(f"graph of {nodes}"))
            places = bursts[nodes].places
            self._see(f"CUDAGraph.replay() of {nodes} nodes, by its place in a row", places)
        fixed, node = launch_bounds(bursts)
        what = f"CUDAGraph.replay() of {GRAPHS} nodes, host time"
        self._bounded("graph_launch_us", fixed, f"{what} without nodes; the high end after a wait")
        self._bounded("graph_node_launch_us", node, f"{what} of one more node", least=_LEAST_NODE)

    def copies(self) -> None:
        rates = []
        for work in ("upload pinned", "upload pageable", "download pinned"):
            moved = self._machine.amount(work)
            rates += [moved / 1e3 / value for value in self._machine.device_us(work)]
        self._put("copy_gb_s", rates, "64 MB up and down, pinned and pageable")

    def _put(self, path: str, samples: Iterable[float], what: str) -> None:
        values = [max(_LEAST, value) for value in samples]
        if values:
            low, high = _bounds(values)
            self._bounded(path, (low, median(values), high), what)

    def _bounded(self, path: str, bounds: Bounds, what: str, *, least: float = _LEAST) -> None:
        machine = self._machine
        source = f"measured by graphdoctor calibrate on {machine.name}, {machine.software}: {what}"
        low, mid, high = (max(least, value) for value in bounds)
        self.figures[path] = Figure(low, mid, high, source)

    def _see(self, what: str, values_us: Samples) -> None:
        """Keep what a figure was made of: many samples as their median and bounds."""
        if len(values_us) > _MOST_SHOWN:
            low, high = _bounds(values_us)
            shown = f"{median(values_us):.3f} ({low:.3f} to {high:.3f})"
        else:
            shown = " ".join(f"{value:.3f}" for value in values_us)
        self.seen.append(f"{what}: {shown} us")


def _bounds(values: Samples) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    if len(values) < 2:
        return values[0], values[0]
    tenths = quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def _less(samples: Samples, amount: float) -> list[float]:
    return [value - amount for value in samples]


def profile_text(found: Calibrated, base: DeviceProfile, gpu: str) -> str:
    """TOML that `--gpu FILE` reads: every figure of the base, with the machine's own in their place.

    What was seen on the way follows as comments.
    """
    figures = found.figures
    lines = [
        f"# {gpu}: figures measured by graphdoctor calibrate; the others are those of {base.title}.",
        f"name = {_text(_slug(gpu))}",
        f"title = {_text(gpu)}",
        f"device_names = {json.dumps([gpu])}",
        f"fitted_on = {_text(_slug(gpu))}",
        f"host = {_text(f'the host of the {gpu}')}",
    ]
    tables = []
    for field in base.__struct_fields__:
        value = getattr(base, field)
        if isinstance(value, Figure):
            lines.append(f"{field} = {_figure(figures.get(field, value))}")
        elif isinstance(value, Struct):
            tables += ["", f"[{field}]", *_table(field, value, figures)]
    seen = [f"# {visible(line)}" for line in found.seen]
    return "\n".join([*lines, *tables, "", *seen, ""])


def host_text(found: MeasuredHost) -> str:
    """TOML that `--host FILE` reads; what was seen on the way follows as comments."""
    profile = found.profile
    lines = [f"name = {_text(profile.name)}", f"title = {_text(profile.title)}"]
    lines += [f"{kind} = {_figure(getattr(profile, kind))}" for kind in HOST_KINDS]
    seen = [f"# {visible(line)}" for line in found.seen]
    return "\n".join([*lines, "", *seen, ""])


def _table(group: str, value: Struct, figures: Mapping[str, Figure]) -> Iterator[str]:
    for name in value.__struct_fields__:
        yield f"{name} = {_figure(figures.get(f'{group}.{name}', getattr(value, name)))}"


def _figure(figure: Figure) -> str:
    low, mid, high = (f"{value:.6g}" for value in (figure.low, figure.mid, figure.high))
    return f"{{ low = {low}, mid = {mid}, high = {high}, source = {_text(figure.source)} }}"


def _text(text: str) -> str:
    """A TOML string; JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=True)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
