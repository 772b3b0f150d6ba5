"""Traces of everything that a step may do, drawn from seeds; run as a module it writes their golden figures."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.trace import TraceReport
from tests.support.regimes import REGIMES, RegimeTrace
from tests.support.traces import TraceBuilder

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "trace_figures.json"
REAL = TESTS / "real" / "h100_bert_small_cut.json.gz"
SEEDS = range(12)
# Of all kinds that are accepted: what a step takes without the profiler, longer than the trace itself,
# and shorter than any speed of the host explains.
WALLS = {
    "real": 3000.0,
    "story 1": 900.0,
    "story 4": 300.0,
    "story 8": 300.0,
    "launch-bound": 80.0,
    "graph": 80.0,
    "mixed": 180.0,
}
_FULL_QUEUE = 940
_UPLOAD, _READ = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)"


class Story(TraceBuilder):
    """Steps of a host that launches, waits, reads, uploads and pauses; each event's times are drawn."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed)
        self._host = 1000.0
        self._streams = {7: 1000.0, 9: 1000.0}
        if seed % 3 == 0:  # the profiler began while the device worked
            for start in (996.5, 1001.0, 1004.0, 1007.5, 1011.0):
                self.kernel(9_999_999, start, 4.0 if seed % 2 else 2.0)
            self._streams[7] = 1020.0
        for number in range(seed % 4 + 2):
            self._one_step(number, is_named=seed % 5 != 4, work=self._works(seed, number))

    @staticmethod
    def _works(seed: int, number: int) -> str:
        """What the step does, a letter each; one step of some stories is unlike the others."""
        work = "lllsllullrlgllolkllplddlt"
        turned = work[seed % 7 :] + work[: seed % 7]
        return turned + "ll" if seed % 6 == 1 and number == 1 else turned

    def _one_step(self, number: int, *, is_named: bool, work: str) -> None:
        begin = self._host
        for letter in work:
            getattr(self, f"_do_{letter}")()
        if is_named:
            self.step(number, begin, self._host - begin)
        self._host += self._draw.choice((0.0, 3.5, 1500.0))

    def _passes(self, low: int, high: int) -> float:
        """So many eighths of a us go by on the host; where they began."""
        begin = self._host
        self._host += self._draw.randint(low, high) / 8
        return begin

    def _runs(self, call: int, issued: float, stream: int, us: float, name: str = "k") -> None:
        begin = max(issued + 2.25, self._streams[stream] + self._draw.choice((0.5, 1.0, 6.0)))
        if "Memcpy" in name:
            self.copy(call, begin, us, name=name)
        else:
            self.kernel(call, begin, us, stream=stream, name=name)
        self._streams[stream] = begin + us

    def _do_l(self) -> None:
        """An operator in a frame of the user's, with one inside, launches a kernel."""
        frame = self._passes(2, 9)
        outer = self._passes(3, 20)
        inner = self._passes(4, 30)
        launch = self._passes(16, 40)
        call = self.call("cudaLaunchKernel", launch, self._host - launch)
        stream = self._draw.choice((7, 7, 7, 9))
        self._runs(call, launch, stream, self._draw.randint(8, 90) / 8, f"k{int(outer) % 3}")
        self.operator(f"aten::inner{int(outer) % 2}", inner, self._host - inner)
        end = self._passes(1, 6)
        self.operator(f"aten::outer{int(outer) % 4}", outer, end - outer)
        self.frame(f"model.py({int(outer) % 5 + 10}): forward", frame, self._host - frame)

    def _do_s(self) -> None:
        """The host waits until the device has done its work, in a call around a call of the driver."""
        start = self._passes(1, 4)
        done = max(*self._streams.values(), start) + 4.5
        self.call("cudaDeviceSynchronize", start, done - start)
        self.call("cuCtxSynchronize", start + 0.5, done - start - 1, "cuda_driver")
        self.frame("train.py(7): wait", start - 0.5, done - start + 1)
        self._host = done + 1.5

    def _do_r(self) -> None:
        """It reads a value back."""
        start = self._passes(1, 4)
        call = self._correlation + 1
        self._runs(call, start, 7, 1.5, _READ)
        done = self._streams[7] + 3
        self.call("cudaMemcpyAsync", start + 1, done - start - 1)
        self.operator("aten::item", start, done - start)
        self._host = done + 0.5

    def _do_u(self) -> None:
        start = self._passes(8, 24)
        self._runs(self.call("cudaMemcpyAsync", start, self._host - start), start, 7, 3.0, _UPLOAD)

    def _do_g(self) -> None:
        start = self._passes(30, 90)
        call = self.call("cudaGraphLaunch", start, self._host - start)
        for node in range(4):
            self._runs(call, start, 7, self._draw.randint(8, 30) / 8, f"node{node}")

    def _do_o(self) -> None:
        """Another thread launches, and waits, on a stream of its own."""
        start = self._host
        call = self.call("cudaLaunchKernel", start + 1, 2.5, thread=5005)
        self._runs(call, start + 1, 9, 4.0, "other")
        self.call("cudaStreamSynchronize", start + 4, 7.5, thread=5005)

    def _do_k(self) -> None:
        """A kernel whose launch was lost, and now and then a launch whose kernel was."""
        self.kernel(None, self._streams[7] + 3, 2.0, name="lost")
        self._streams[7] += 5
        if self._draw.random() < 0.5:
            start = self._passes(20, 30)
            self.call("cudaLaunchKernel", start, self._host - start)

    def _do_p(self) -> None:
        self._passes(8, 40)
        if self._draw.random() < 0.4:
            self._host += 1200.0

    def _do_d(self) -> None:
        """Work for a second device."""
        start = self._passes(16, 24)
        self.kernel(self.call("cudaLaunchKernel", start, 2.0), start + 3, 9.0, device=1)

    def _do_t(self) -> None:
        """Many small launches, one by one."""
        for _ in range(5):
            start = self._passes(8, 16)
            call = self.call("cudaLaunchKernelExC", start, self._host - start)
            self._runs(call, start, 7, self._draw.randint(2, 200) / 8)


def full_queue() -> TraceBuilder:
    """A host that runs ahead until the driver's queue is full, and then waits in its launches."""
    builder = TraceBuilder()
    device = 105.0
    for index in range(_FULL_QUEUE + 20):
        start = 100.0 + index * 2
        length = 60.0 if index % 4 == 3 and index > _FULL_QUEUE else 1.5
        device = max(device, start + 3)
        builder.launch((start, length), (device, 400.0))
        device += 401.0
    return builder


def reports(folder: Path) -> dict[str, TraceReport]:
    """What is said of each trace."""
    files = {"real": REAL}
    builders = {f"story {seed}": Story(seed) for seed in SEEDS}
    for name, builder in {**builders, "full queue": full_queue()}.items():
        files[name] = builder.write(folder / f"{name}.json")
    for regime in REGIMES:
        files[regime] = folder / f"{regime}.json"
        with files[regime].open("w") as out:
            RegimeTrace(regime, kernels=12, steps=4, seed=3).write(out)
    found = {}
    for name, file in files.items():
        trace = read_trace(file)
        found[name] = explain_trace(trace, file)
        if name in WALLS:
            options = TraceOptions(wall_us=WALLS[name])
            found[f"{name}, wall time known"] = explain_trace(trace, file, options)
    return found


def figures(report: TraceReport) -> dict[str, Any]:
    """Every figure and decision, without the sentences around them."""
    whole = msgspec.to_builtins(report)
    kept = ("verdict", "confidence", "step_basis", "steps_counted", "events", "devices", "syncs")
    found = {name: whole[name] for name in (*kept, "operators", "lines", "launches", "graphs")}
    for name in ("idle_kinds", "gap_causes", "step_kinds"):
        found[name] = [[*row.values()] for row in whole[name]]
    found["work"] = {
        name: [[*row.values()] for row in rows] if isinstance(rows, list) else rows
        for name, rows in whole["work"].items()
    }
    found["steps"] = [[*step.values()] for step in whole["steps"]]
    found["doubts"] = [[doubt["kind"], doubt["corrected"]] for doubt in whole["doubts"]]
    prediction = whole["prediction"] or {"terms": ()}
    found["terms"] = [[term["name"], term["value"]] for term in prediction["terms"]]
    found["prediction"] = {key: value for key, value in prediction.items() if key != "terms"}
    found["depths"] = [point["depth"] for point in whole["queue"]["points"]]
    found["delay_us"] = whole["queue"]["median_delay_us"]
    found["gaps"] = [[*gap.values()] for gap in whole["longest_gaps"][:12]]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        golden = {name: figures(report) for name, report in reports(Path(scratch)).items()}
    lines = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in parts.items())
        + "\n}"
        for name, parts in golden.items()
    )
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
