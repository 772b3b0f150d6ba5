"""Small profiler traces of a GPU for tests, written event by event; times in us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphdoctor.trace import Trace, parse_trace

_HOST, _THREAD, _STREAM = 4000, 4001, 7


class TraceBuilder:
    """Collects events as torch.profiler writes them; every launch joins a call and its kernels."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._operator = 0  # the external id of the latest operator

    def step(self, number: int, start: float, dur: float) -> None:
        self._add("user_annotation", f"ProfilerStep#{number}", start, dur)

    def operator(self, name: str, start: float, dur: float) -> None:
        self._operator += 1
        self._add("cpu_op", name, start, dur)

    def call(
        self,
        name: str,
        start: float,
        dur: float,
        category: str = "cuda_runtime",
        *,
        thread: int = _THREAD,
        correlation: int | None = None,
    ) -> int:
        self._correlation += 1
        correlation = self._correlation if correlation is None else correlation
        args = {"External id": self._operator, "correlation": correlation}
        self._event(category, name, start, dur, pid=_HOST, tid=thread, args=args)
        return correlation

    def copy(self, correlation: int, start: float, dur: float, *, name: str) -> None:
        args = {"device": 0, "stream": _STREAM, "correlation": correlation, "bytes": 4}
        self._event("gpu_memcpy", name, start, dur, pid=0, tid=_STREAM, args=args)

    def frame(self, name: str, start: float, dur: float, *, thread: int = _THREAD) -> None:
        args = {"External id": self._operator}
        self._event("python_function", name, start, dur, pid=_HOST, tid=thread, args=args)

    def annotation(self, name: str, start: float, dur: float) -> None:
        self._add("user_annotation", name, start, dur)

    def overhead(self, name: str, start: float, dur: float) -> None:
        self._add("overhead", name, start, dur)

    def kernel(
        self,
        correlation: int | None,
        start: float,
        dur: float,
        *,
        name: str = "k",
        stream: int = _STREAM,
        device: int = 0,
    ) -> None:
        args = {"device": device, "stream": stream, "correlation": correlation}
        if correlation is None:
            del args["correlation"]
        args["External id"] = self._operator
        self._event("kernel", name, start, dur, pid=device, tid=stream, args=args)

    def launch(self, call: tuple[float, float], kernel: tuple[float, float]) -> None:
        """One cudaLaunchKernel and its kernel, each as (start, length)."""
        self.kernel(self.call("cudaLaunchKernel", *call), *kernel)

    def document(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "Test GPU", "totalGlobalMem": 1}],
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 0,
            "traceEvents": self.events,
        }

    def trace(self) -> Trace:
        return parse_trace(json.dumps(self.document()).encode())

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()), encoding="utf-8")
        return path

    def _add(self, category: str, name: str, start: float, dur: float, **args: Any) -> None:
        args["External id"] = self._operator
        self._event(category, name, start, dur, pid=_HOST, tid=_THREAD, args=args)

    def _event(self, cat: str, name: str, ts: float, dur: float, **rest: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **rest}
        self.events.append(event)


def launch_bound(kernels: int = 10, *, steps: int = 1) -> TraceBuilder:
    """Steps in which each kernel of 2 us waits for its launch, 10 us apart."""
    builder = TraceBuilder()
    for step in range(steps):
        begin = 1000.0 + step * kernels * 10
        builder.step(step, begin, kernels * 10.0)
        for index in range(kernels):
            start = begin + index * 10
            builder.operator("aten::mul", start, 8)
            builder.launch((start + 3, 3), (start + 7, 2))
    return builder
