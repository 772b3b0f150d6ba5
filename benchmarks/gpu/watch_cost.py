"""What `graphdoctor watch` costs a launch-bound training step, with intervals -> lines, and JSON.

    python benchmarks/gpu/watch_cost.py [--windows 20] [--pairs 3] [--seconds 60] [--json FILE]

Three measurements, each of watching beside not watching in turn:

- windows: one process steps while windows open in it, far more often than `watch` opens them. Lost is the time of
  the steps around a window beyond what they take between windows. Steps before the profiler's start
  and between windows say what it leaves behind. Together: the overhead at the rate of `watch`.
- replays: blocks of replays of a graph of one kernel, counted and not counted.
- pairs: the same program under Python and under `graphdoctor watch`, one after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

WARM_UP_S, BEFORE_S, REST_S, AFTER_WINDOW_S = 3.0, 10.0, 1.5, 0.01
BLOCK_S = 0.5
REPLAY_BLOCKS, REPLAYS = 40, 2000


def make_step() -> Callable[[], object]:
    """Forward, backward and optimizer of eight small layers: some 150 launches, each shorter than its launch."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    data = torch.randn(32, 64, device="cuda")

    def step() -> object:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def run_for(step: Callable[[], object], seconds: float) -> array[float]:
    """When each step began, and when the last ended."""
    begun, stamps = time.perf_counter(), array("d")
    while stamps.append(time.perf_counter()) or stamps[-1] - begun < seconds:
        step()
    return stamps


def with_interval(values: Sequence[float]) -> dict[str, float]:
    """The mean and its 95% interval."""
    mean = statistics.fmean(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": mean, "low": mean - half, "high": mean + half}


def windows_cost(count: int) -> dict[str, Any]:
    from graphdoctor.measure.watch.duty import SHARE
    from graphdoctor.measure.watch.gate import Gate
    from graphdoctor.measure.watch.profiler import Profiler, prepare_environment

    prepare_environment()
    step, profiler = make_step(), Profiler(Gate())
    run_for(step, WARM_UP_S)
    opened: list[tuple[float, float, int]] = []
    done = threading.Event()

    def look() -> None:
        try:
            for _ in range(count):
                time.sleep(REST_S)
                begun = time.perf_counter()
                found = profiler.look()
                assert found is not None
                opened.append((begun, time.perf_counter(), len(found[0])))
                del found
            time.sleep(REST_S)
        finally:
            done.set()

    stamps = run_for(step, BEFORE_S)
    with profiler.on():
        begun = time.perf_counter()
        assert profiler.set_up(), profiler.reason
        ready = time.perf_counter()
        thread = threading.Thread(target=look)
        thread.start()
        while not done.is_set():
            stamps.append(time.perf_counter())
            step()
        thread.join()
    busy = [(begun, ready + REST_S / 2), *((b, e + AFTER_WINDOW_S) for b, e, _ in opened)]
    before = block_means(stamps, [(stamps[0], begun)])
    between = block_means(stamps, [(a[1], b[0]) for a, b in pairwise(busy)])
    usual_s = statistics.fmean(between)
    lost = [lost_s(stamps, begun, ended, usual_s) for begun, ended in busy[1:]]
    walls = [ended - begun for begun, ended, _ in opened]
    period_s = statistics.fmean(walls) / SHARE * 1.1 + statistics.fmean(walls)
    left = relative(with_interval(between), with_interval(before))
    spent = with_interval([each / period_s for each in lost])
    return {
        "step_us_before": with_interval([1e6 * each for each in before]),
        "step_us_between": with_interval([1e6 * each for each in between]),
        "setup_s": ready - begun,
        "window_wall_s": with_interval(walls),
        "window_lost_s": with_interval(lost),
        "window_events": [events for _, _, events in opened],
        "period_s": period_s,
        "overhead_of_windows": spent,
        "overhead_between": left,
        "overhead": {key: spent[key] + left[key] for key in spent},
    }


def relative(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """By how much more, with the interval that both allow."""
    mean = after["mean"] / before["mean"] - 1
    widths = [(each["high"] - each["mean"]) / each["mean"] for each in (after, before)]
    half = (1 + mean) * math.hypot(*widths)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def block_means(stamps: array[float], spans: Sequence[tuple[float, float]]) -> list[float]:
    """The mean time of a step in each block of half a second within the spans."""
    means: list[float] = []
    for begun, ended in spans:
        inside = [stamp for stamp in stamps if begun <= stamp < ended]
        first = 0
        for last in range(1, len(inside)):
            if inside[last] - inside[first] >= BLOCK_S:
                means.append((inside[last] - inside[first]) / (last - first))
                first = last
    return means


def lost_s(stamps: array[float], begun: float, ended: float, usual_s: float) -> float:
    """How much longer the steps around a window took than as many of them take."""
    first = max((n for n, stamp in enumerate(stamps) if stamp <= begun), default=0)
    last = min((n for n, stamp in enumerate(stamps) if stamp >= ended), default=len(stamps) - 1)
    return stamps[last] - stamps[first] - (last - first) * usual_s


def replays_cost() -> dict[str, Any]:
    from graphdoctor.measure.watch.gate import Gate
    from graphdoctor.measure.watch.graph_counts import GraphCounts

    data, graph = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        data.add_(1)
    counts = GraphCounts(Gate())

    def block_s() -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        taken = time.perf_counter() - begun
        torch.cuda.synchronize()
        return taken / REPLAYS

    block_s()
    plain, more = [], []
    for _ in range(REPLAY_BLOCKS):
        plain.append(block_s())
        with counts.on(torch.cuda.CUDAGraph):
            more.append(block_s() - plain[-1])
    return {
        "replay_us": 1e6 * statistics.fmean(plain),
        "counting_ns": {key: 1e9 * value for key, value in with_interval(more).items()},
    }


def pairs_cost(pairs: int, seconds: float) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            for kind in ("plain", "watched") if pair % 2 == 0 else ("watched", "plain"):
                out, report = Path(folder) / "out.json", Path(folder) / "watch.json"
                watch = ["-m", "graphdoctor", "watch", "--json", str(report)]
                command = [sys.executable, *(watch if kind == "watched" else ()), __file__]
                command += ["--loop", str(seconds), "--json", str(out)]
                subprocess.run(command, check=True)
                found.append({"pair": pair, "kind": kind, **json.loads(out.read_text())})
                if kind == "watched":
                    found[-1]["report"] = json.loads(report.read_text())
    step = {(each["pair"], each["kind"]): each["mean_s"] for each in found}
    ratios = [step[pair, "watched"] / step[pair, "plain"] - 1 for pair in range(pairs)]
    return {"runs": found, "overhead": with_interval(ratios)}


def loop(seconds: float) -> dict[str, float]:
    step = make_step()
    run_for(step, WARM_UP_S)
    stamps = run_for(step, seconds)
    each = [after - before for before, after in pairwise(stamps)]
    return {
        "steps": len(each),
        "mean_s": statistics.fmean(each),
        "median_s": statistics.median(each),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run of a pair")
    parser.add_argument("--loop", type=float, help=argparse.SUPPRESS)  # a run of a pair
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.loop is not None:
        args.json.write_text(json.dumps(loop(args.loop)))
        return
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    parts = {
        "windows": lambda: windows_cost(args.windows),  # before any capture (pytorch#75504)
        "replays": replays_cost,
        "pairs": lambda: pairs_cost(args.pairs, args.seconds),
    }
    for name, measure in parts.items():
        found[name] = measure()
        shown = {key: value for key, value in found[name].items() if key != "runs"}
        print(json.dumps({name: shown}, indent=1), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
