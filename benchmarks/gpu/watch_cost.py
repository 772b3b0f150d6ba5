"""What `graphdoctor watch` costs a launch-bound training step, with intervals -> lines, and JSON.

    python benchmarks/gpu/watch_cost.py [--windows 12] [--rounds 150] [--restarts 200] [--json FILE]

- left: what windows leave behind. Two processes take blocks of steps in turn, before and after three windows opened in
  one of them; the change of the ratio of their times is what those left.
- windows: one process steps while windows open in it, far more often than `watch` opens them. Lost is the time of the
  steps around a window beyond what they take between windows; at the rate of `watch` that is the overhead.
- restarts: short windows one after the other beside four threads that launch kernels and replay graphs, with what the
  process holds before and after.
- replays: blocks of replays of a graph of one kernel, counted and not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from graphdoctor.measure.watch.duty import SHARE
from graphdoctor.measure.watch.gate import Gate
from graphdoctor.measure.watch.graph_counts import GraphCounts
from graphdoctor.measure.watch.profiler import Profiler, prepare_environment

WARM_UP_S, REST_S, AFTER_WINDOW_S = 2.0, 1.0, 0.01
BLOCK_STEPS, BLOCK_S = 20, 0.25
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


def make_replay() -> Callable[[], object]:
    """A replay of a graph of ten kernels."""
    data, graph = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            data.add_(1)
    return graph.replay


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


# What windows leave behind -------------------------------------------------------------------


def left_behind(rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        plain, looked_at = (stack.enter_context(_Stepping()) for _ in range(2))
        before = [_both(plain, looked_at, turn) for turn in range(rounds)]
        window_s = looked_at.ask("look")
        after = [_both(plain, looked_at, turn) for turn in range(rounds)]
    found: dict[str, Any] = {"windows_s": window_s}
    for part, kind in enumerate(("step", "launch", "replay")):
        times = [[[each[part] for each in pair] for pair in phase] for phase in (before, after)]
        ratios = [
            with_interval([math.log(looked / alone) for alone, looked in phase]) for phase in times
        ]
        change = ratios[1]["mean"] - ratios[0]["mean"]
        half = math.hypot(*(each["high"] - each["mean"] for each in ratios))
        found[kind] = {
            "us_before": 1e6 * statistics.median(looked for _, looked in times[0]),
            "us_after": 1e6 * statistics.median(looked for _, looked in times[1]),
            "left": math.expm1(change),
            "low": math.expm1(change - half),
            "high": math.expm1(change + half),
        }
    return found


def _both(plain: _Stepping, looked_at: _Stepping, turn: int) -> tuple[list[float], list[float]]:
    if turn % 2:
        looked, alone = looked_at.ask("block"), plain.ask("block")
    else:
        alone, looked = plain.ask("block"), looked_at.ask("block")
    return alone, looked


class _Stepping:
    """A fork that takes blocks of steps, and looks, when it is asked."""

    def __enter__(self) -> _Stepping:
        self._ours, theirs = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _answer(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()
        return self

    def ask(self, what: str) -> Any:
        self._ours.send(what)
        return self._ours.recv()

    def __exit__(self, *_: object) -> None:
        self._ours.send("end")
        os.waitpid(self._pid, 0)


def _answer(asked: Connection) -> None:
    step, replay, data = make_step(), make_replay(), torch.zeros(64, device="cuda")
    run_for(step, WARM_UP_S)
    profiler = Profiler(Gate())
    while (what := asked.recv()) != "end":
        if what == "look":
            asked.send(_looks(profiler, step))
            continue
        asked.send(
            [
                per_call_s(step, BLOCK_STEPS),
                per_call_s(lambda: data.add_(1), 20 * BLOCK_STEPS),
                per_call_s(replay, 10 * BLOCK_STEPS),
            ]
        )


def per_call_s(call: Callable[[], object], number: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(number):
        call()
    taken = time.perf_counter() - begun
    torch.cuda.synchronize()
    return taken / number


def _looks(profiler: Profiler, step: Callable[[], object]) -> list[float]:
    """Three windows beside the steps, in a thread of their own, as `watch` has them."""
    taken, done = [], threading.Event()

    def look() -> None:
        try:
            for _ in range(3):
                begun = time.perf_counter()
                profiler.look()
                taken.append(time.perf_counter() - begun)
        finally:
            done.set()

    with profiler.on():
        assert profiler.set_up(), profiler.reason
        thread = threading.Thread(target=look)
        thread.start()
        while not done.is_set():
            step()
        thread.join()
    return taken


# What a window costs -------------------------------------------------------------------------


def windows_cost(count: int) -> dict[str, Any]:
    step, profiler = make_step(), Profiler(Gate())
    run_for(step, WARM_UP_S)
    opened: list[tuple[float, float, int]] = []
    done, stamps = threading.Event(), array("d")

    def look() -> None:
        try:
            for _ in range(count):
                time.sleep(REST_S)
                begun = time.perf_counter()
                found = profiler.look()
                opened.append((begun, time.perf_counter(), len(found[0]) if found else 0))
                del found
            time.sleep(REST_S)
        finally:
            done.set()

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
    busy = [(begun, ready), *((b, e + AFTER_WINDOW_S) for b, e, _ in opened)]
    between = block_means(stamps, [(a[1], b[0]) for a, b in pairwise(busy)])
    usual_s = statistics.fmean(between)
    lost = [lost_s(stamps, begun, ended, usual_s) for begun, ended in busy[1:]]
    walls = [ended - begun for begun, ended, _ in opened]
    period_s = statistics.fmean(walls) / SHARE * 1.1 + statistics.fmean(walls)
    return {
        "step_us_between": with_interval([1e6 * each for each in between]),
        "setup_s": ready - begun,
        "window_wall_s": with_interval(walls),
        "window_lost_s": with_interval(lost),
        "window_events": [events for _, _, events in opened],
        "blind": profiler.blind,
        "period_s": period_s,
        "overhead": with_interval([each / period_s for each in lost]),
    }


def block_means(stamps: array[float], spans: Sequence[tuple[float, float]]) -> list[float]:
    """The mean time of a step in each block of a quarter of a second within the spans."""
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


# Many windows, and replays -------------------------------------------------------------------


def many_windows(count: int) -> dict[str, Any]:
    is_over = threading.Event()
    works = [make_step(), make_step(), make_replay(), make_replay()]
    calls = [0] * len(works)

    def goes_on(number: int) -> None:
        while not is_over.is_set():
            works[number]()
            calls[number] += 1

    profiler = Profiler(Gate(), 0.005)
    with profiler.on():
        assert profiler.set_up(), profiler.reason
        threads = [threading.Thread(target=goes_on, args=(n,)) for n in range(len(works))]
        for each in threads:
            each.start()
        held, walls, events = [held_by_process()], [], []
        for number in range(1, count + 1):
            begun = time.perf_counter()
            found = profiler.look()
            walls.append(time.perf_counter() - begun)
            events.append(len(found[0]) if found else 0)
            if number % (count // 4) == 0:
                held.append(held_by_process())
        is_over.set()
        for each in threads:
            each.join()
    torch.cuda.synchronize()
    return {
        "windows": count,
        "empty": sum(not each for each in events),
        "blind": profiler.blind,
        "wall_s": {"median": statistics.median(walls), "longest": max(walls)},
        "held": held,
        "calls_of_each_thread": calls,
    }


def held_by_process() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "gpu_used_mib": round(
            (lambda free, total: total - free)(*torch.cuda.mem_get_info()) / 2**20
        ),
    }


def replays_cost() -> dict[str, Any]:
    data, graph = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        data.add_(1)
    counts = GraphCounts(Gate())
    per_call_s(graph.replay, REPLAYS)
    plain, more = [], []
    for _ in range(REPLAY_BLOCKS):
        plain.append(per_call_s(lambda: graph.replay(), REPLAYS))
        with counts.on(torch.cuda.CUDAGraph):
            more.append(per_call_s(lambda: graph.replay(), REPLAYS) - plain[-1])
    return {
        "replay_us": 1e6 * statistics.fmean(plain),
        "counting_ns": {key: 1e9 * value for key, value in with_interval(more).items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prepare_environment()
    found: dict[str, Any] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "left": lambda: left_behind(args.rounds),  # forks, so before CUDA has started here
        "windows": lambda: windows_cost(args.windows),
        "replays": replays_cost,
        "restarts": lambda: many_windows(args.restarts),
    }
    for name, measure in parts.items():
        found[name] = measure()
        print(json.dumps({name: found[name]}, indent=1), flush=True)
        if name != "left":
            found |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
