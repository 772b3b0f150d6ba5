"""What `graphdoctor watch` costs a launch-bound training step, with intervals -> lines, and JSON.

    python benchmarks/gpu/watch_cost.py [--pairs 400] [--windows 12] [--restarts 200] [--json FILE] [PART ...]

- watch: short blocks of steps, and of replays, in turn beside a watcher and without one, in one process; and what a
  line costs, of which there is one every 30 s.
- replays: blocks of replays of a graph of one kernel, counted and not counted.
- windows (--cupti): one process steps while windows open in it, far more often than `watch` opens them. Lost is the
  time of the steps around a window beyond what they take between windows.
- restarts (--cupti): short windows one after the other beside four threads that launch kernels and replay graphs, with
  what the process holds before and after. It runs last, in a fork: it has ended a process.
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
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from graphdoctor.measure.watch.profiler import Gate, Profiler, prepare_environment
from graphdoctor.measure.watch.sampling import SHARE
from graphdoctor.measure.watch.watcher import GraphCounts, Watcher
from graphdoctor.reporters import watch_page

WARM_UP_S, REST_S, AFTER_WINDOW_S = 2.0, 1.0, 0.01
BLOCK_STEPS, BLOCK_S = 10, 0.25
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


# What watching costs -------------------------------------------------------------------------


def watch_cost(pairs: int) -> dict[str, Any]:
    """Ratios of neighbouring blocks, with and without, whose order changes from pair to pair."""
    found: dict[str, Any] = {}
    calls = {"step": (make_step(), BLOCK_STEPS), "replay": (make_replay(), 200 * BLOCK_STEPS)}
    for name, (call, number) in calls.items():
        run_for(call, WARM_UP_S)
        times: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs):
            for is_watched in (True, False) if pair % 2 else (False, True):
                with new_watcher().on() if is_watched else nullcontext():
                    times[is_watched].append(per_call_s(call, number))
        logs = [math.log(a / b) for a, b in zip(times[True], times[False], strict=True)]
        found[name] = {
            "pairs": pairs,
            "us": 1e6 * statistics.median(times[False]),
            "us_watched": 1e6 * statistics.median(times[True]),
            "overhead": {key: math.expm1(v) for key, v in median_with_interval(logs).items()},
        }
    watcher, taken = new_watcher(), []
    with watcher.on():
        for _ in range(50):
            begun = time.perf_counter()
            watch_page.line(watcher.report(), None)
            taken.append(time.perf_counter() - begun)
    return {**found, "line_us": 1e6 * statistics.median(taken)}


def new_watcher() -> Watcher:
    return Watcher(("program.py",), 3600.0, lambda now, before: None, lambda report: None)


def median_with_interval(values: Sequence[float]) -> dict[str, float]:
    """The median and its 95% interval by order statistics, which blocks that the machine disturbed do not widen."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    middle = (len(ordered) - 1) / 2
    low, high = max(0, math.floor(middle - half)), min(len(ordered) - 1, math.ceil(middle + half))
    return {"median": statistics.median(ordered), "low": ordered[low], "high": ordered[high]}


def per_call_s(call: Callable[[], object], number: int) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(number):
        call()
    taken = time.perf_counter() - begun
    torch.cuda.synchronize()
    return taken / number


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


def in_fork(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it gives, or how its process ended; CUDA must not have started here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(measure()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(text) if text else {"failed": True, "status": status}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "watch": lambda: watch_cost(args.pairs),
        "replays": replays_cost,
        "windows": lambda: windows_cost(args.windows),
        "restarts": lambda: many_windows(args.restarts),
    }
    parser.add_argument("parts", nargs="*", default=[*parts], metavar="PART")
    args = parser.parse_args()
    prepare_environment()
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in args.parts:
        begun = time.monotonic()
        found[name] = {**in_fork(parts[name]), "took_s": round(time.monotonic() - begun, 1)}
        print(json.dumps({name: found[name]}, indent=1), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    found["gpu"] = (
        torch.cuda.get_device_name()
    )  # asked after the forks, which could not use CUDA otherwise
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
