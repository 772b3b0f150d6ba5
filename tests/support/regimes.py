"""Traces of known truth in four regimes, written event by event as torch.profiler writes them.

The host and the device are simulated here in whole ns, apart from graphdoctor's own simulation:
the truth is what this simulation knows of every gap, and not what a reader would work out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TextIO

Regime = Literal["launch-bound", "mixed", "gpu-bound", "graph", "sync"]
REGIMES: tuple[Regime, ...] = ("launch-bound", "mixed", "gpu-bound", "graph", "sync")

_LATENCY_NS = 2_200
_QUEUE_GAP_NS = 1_000
_KERNEL_NS: dict[Regime, tuple[int, int]] = {
    "launch-bound": (1_500, 3_000),
    "mixed": (500, 17_000),
    "gpu-bound": (20_000, 60_000),
    "graph": (2_000, 6_000),
    "sync": (20_000, 60_000),
}
_BASE_US = 4_317_453_815_758


@dataclass
class Truth:
    """What really happened on the device, in ns; idle has one cause at a time."""

    busy: int = 0
    launch_bound: int = 0
    sync_wait: int = 0
    device_gap: int = 0
    warm_up: int = 0  # idle in cold launches, which no other part counts
    kernels: int = 0
    steps: list[int] = field(default_factory=list)  # kernels of each

    @property
    def idle(self) -> int:
        return self.launch_bound + self.sync_wait + self.device_gap

    @property
    def span(self) -> int:
        return self.busy + self.idle


class RegimeTrace:
    """Simulates steps of one regime and writes their events."""

    def __init__(
        self,
        regime: Regime,
        *,
        kernels: int,
        steps: int,
        seed: int = 0,
        cold_ns: Mapping[int, int] | None = None,
    ) -> None:
        """`cold_ns`: the launches, by their number from 1 on, that load code first, and for how long."""
        self.regime = regime
        self._cold_ns = cold_ns or {}
        self.kernels, self.steps = kernels, steps
        self.truth = Truth()
        self._random = random.Random(seed)
        self._host = 0
        self._device = 0
        self._waited_until = 0  # the end of the wait that began while the device worked
        self._waited_from = 0
        self._loads = (0, 0)  # the last cold launch
        self._correlation = 100

    def write(self, file: TextIO) -> Truth:
        """The whole file. Events are 265 bytes long on average, as real ones are."""
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],')
        file.write('\n  "traceEvents": [\n  ')
        for place, event in enumerate(self._events()):
            file.write(f",\n  {event}" if place else event)
        file.write('\n  ],\n  "traceName": "regime.json", "displayTimeUnit": "ms"\n}\n')
        return self.truth

    def _events(self) -> Iterator[str]:
        for step in range(self.steps):
            begin, before = self._host, self.truth.kernels
            yield from self._step()
            self.truth.steps.append(self.truth.kernels - before)
            yield _span("user_annotation", f"ProfilerStep#{step}", begin, self._host - begin, step)

    def _step(self) -> Iterator[str]:
        if self.regime == "graph":
            yield from self._graph()
            return
        for place in range(self.kernels):
            yield from self._operator(place)
        if self.regime == "sync":
            yield from self._wait()

    def _operator(self, place: int) -> Iterator[str]:
        work, call = self._random.randint(4_000, 9_000), self._random.randint(2_500, 4_500)
        if self.regime == "sync":
            work //= 4
        begin, number = self._host, self._correlation + 1
        call += self._cold_ns.get(number - 100, 0)
        length = work + call
        yield _span(
            "python_function", f"model.py({place % 50}): forward", begin, length + 600, number
        )
        yield _span("cpu_op", f"aten::op{place % 40}", begin + 200, length + 200, number)
        launch = begin + work
        yield from self._launch("cudaLaunchKernel", launch, call, nodes=1)
        self._host = launch + call + 700

    def _graph(self) -> Iterator[str]:
        work, call = self._random.randint(5_000, 9_000), self._random.randint(8_000, 20_000)
        launch = self._host + work
        yield from self._launch("cudaGraphLaunch", launch, call, nodes=self.kernels)
        self._host = launch + call + 500

    def _launch(self, name: str, start: int, length: int, *, nodes: int) -> Iterator[str]:
        self._correlation += 1
        yield _call(name, start, length, self._correlation)
        yield _flow("s", start, self._correlation)
        for node in range(nodes):
            begin = self._place(start, length, is_first=node == 0)
            low, high = _KERNEL_NS[self.regime]
            duration = self._random.randint(low, high)
            yield _kernel(node, begin, duration, self._correlation, graph=nodes > 1)
            yield _flow("f", begin, self._correlation)
            self._device = begin + duration
            self.truth.busy += duration
            self.truth.kernels += 1

    def _place(self, start: int, length: int, *, is_first: bool) -> int:
        """When the next kernel begins; what it waited for is noted in the truth."""
        free = self._device + _QUEUE_GAP_NS
        cold = self._cold_ns.get(self._correlation - 100, 0)
        begin = max(start + cold + _LATENCY_NS, free) if is_first else free
        if not self._device:
            return begin
        gap = begin - self._device
        if cold:
            self._loads = (start, start + length)
        loading = max(0, min(begin, self._loads[1]) - max(self._device, self._loads[0]))
        self.truth.warm_up += loading
        gap -= loading
        if is_first and start + length > self._device:
            waited = 0
            if self._waited_from <= self._device < self._waited_until:
                waited = min(begin, self._waited_until) - self._device
            self.truth.sync_wait += waited
            self.truth.launch_bound += gap - waited
        else:
            self.truth.device_gap += gap
        return begin

    def _wait(self) -> Iterator[str]:
        start = self._host
        end = max(start, self._device) + 6_000
        self._correlation += 1
        yield _call("cudaStreamSynchronize", start, end - start, self._correlation)
        self._waited_from, self._waited_until = start, end
        self._host = end + 2_000


def _us(ns: int) -> str:
    return f"{_BASE_US + ns // 1000}.{ns % 1000:03d}"


def _span(category: str, name: str, start: int, length: int, number: int) -> str:
    ids = f'"Python id": {number}' if category == "python_function" else f'"External id": {number}'
    return (
        f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 77, "tid": 77,'
        f' "ts": {_us(start)}, "dur": {length / 1000:.3f},'
        f' "args": {{{ids}, "Record function id": 0, "Ev Idx": {number}}}}}'
    )


def _call(name: str, start: int, length: int, correlation: int) -> str:
    return (
        f'{{"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 77, "tid": 77,'
        f' "ts": {_us(start)}, "dur": {length / 1000:.3f},'
        f' "args": {{"External id": {correlation}, "cbid": 211, "correlation": {correlation}}}}}'
    )


def _kernel(place: int, start: int, length: int, correlation: int, *, graph: bool) -> str:
    ids = f', "graph id": 3, "graph node id": {place}' if graph else ""
    return (
        f'{{"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4,'
        f" at::native::functor{place % 40}<float>, std::array<char*, 3ul> >(int, at::native::functor,"
        f' std::array<char*, 3ul>)", "pid": 0, "tid": 7, "ts": {_us(start)},'
        f' "dur": {length / 1000:.3f}, "args": {{"External id": {correlation}, "queued": 0, "device": 0,'
        f' "context": 1, "stream": 7, "correlation": {correlation}, "registers per thread": 32,'
        ' "shared memory": 0, "blocks per SM": 1.515152, "warps per SM": 6.060606,'
        ' "grid": [200, 1, 1], "block": [128, 1, 1],'
        f' "est. achieved occupancy %": 9{ids}}}}}'
    )


def _flow(phase: str, start: int, correlation: int) -> str:
    """An arrow from the thread that launches to the stream: other readers find the kernel by its end."""
    place = '"pid": 0, "tid": 7' if phase == "f" else '"pid": 77, "tid": 77'
    bind = ', "bp": "e"' if phase == "f" else ""
    return (
        f'{{"ph": "{phase}", "id": {correlation}, {place}, "ts": {_us(start)},'
        f' "cat": "ac2g", "name": "ac2g"{bind}}}'
    )
