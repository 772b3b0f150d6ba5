"""Which way to count CUDA calls in a running program costs it least -> one JSON row a variant.

    python benchmarks/gpu/watch_variants.py OUT.jsonl

Each variant runs in a fork of its own, with CUDA graphs alive and captured again between windows: what one launch, one
launch-bound step and one replay take before the first window, in windows, and after them.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as torch_profiler
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from watch_cost import make_step

WINDOW_S, CYCLES, LIMIT_S = 0.02, 4, 100.0
DRIVER, RUNTIME, IDS = 1, 2, 2048
# shl esi, 11; add esi, edx; lock inc qword [rdi + 8 * rsi]; ret
COUNT_X86 = bytes.fromhex("c1e60b 01d6 f048ff04f7 c3")
CHOSEN = ("Launch", "Memcpy", "Memset", "Synchronize")


def code(text: bytes) -> tuple[mmap.mmap, int]:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(text)
    return page, ctypes.addressof(ctypes.c_char.from_buffer(page))


class Callbacks:
    """CUPTI's callbacks of API calls, which a few instructions count."""

    def __init__(self, is_chosen: bool, stays: bool = False, finalizes: bool = False) -> None:
        self.is_chosen, self.stays, self.finalizes = is_chosen, stays, finalizes
        self.cupti = ctypes.CDLL(loaded("libcupti.so"))
        self.page, self.address = code(COUNT_X86)
        self.counts = (ctypes.c_uint64 * (8 * IDS))()
        self.handle = ctypes.c_void_p()
        self.chosen = [
            (domain, number)
            for domain in (DRIVER, RUNTIME)
            for number in range(1, 1200)
            if any(part in self.name(domain, number) for part in CHOSEN)
        ]
        assert self.chosen, "CUPTI knows no names"

    def name(self, domain: int, number: int) -> str:
        found = ctypes.c_char_p()
        rc = self.cupti.cuptiGetCallbackName(domain, number, ctypes.byref(found))
        return found.value.decode() if rc == 0 and found.value else ""

    def check(self, rc: int) -> None:
        if rc:
            text = ctypes.c_char_p()
            self.cupti.cuptiGetResultString(rc, ctypes.byref(text))
            raise RuntimeError(f"CUPTI: {rc} {text.value!r}")

    def open(self) -> None:
        if self.handle:
            return
        self.check(
            self.cupti.cuptiSubscribe(
                ctypes.byref(self.handle), ctypes.c_void_p(self.address), ctypes.byref(self.counts)
            )
        )
        if self.is_chosen:
            for domain, number in self.chosen:
                self.check(self.cupti.cuptiEnableCallback(1, self.handle, domain, number))
        else:
            for domain in (DRIVER, RUNTIME):
                self.check(self.cupti.cuptiEnableDomain(1, self.handle, domain))

    def close(self) -> dict[str, int]:
        if not self.stays:
            self.check(self.cupti.cuptiUnsubscribe(self.handle))
            self.handle = ctypes.c_void_p()
            if self.finalizes:
                self.check(self.cupti.cuptiFinalize())
        return self.read()

    def read(self) -> dict[str, int]:
        return {
            f"{'driver' if n // IDS == DRIVER else 'runtime'} {self.name(n // IDS, n % IDS)}": count
            for n, count in enumerate(self.counts)
            if count
        }


class Kineto:
    def __init__(self) -> None:
        made = torch_profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
        self.config, self.activities = made.config(), made.kineto_activities

    def open(self) -> None:
        torch_profiler._prepare_profiler(self.config, self.activities)
        torch_profiler._enable_profiler(self.config, self.activities)

    def close(self) -> dict[str, int]:
        found = torch_profiler._disable_profiler()
        return dict(Counter(f"{each.device_type()} {each.name()}"[:60] for each in found.events()))


class Nothing:
    def open(self) -> None: ...

    def close(self) -> dict[str, int]:
        return {}


def loaded(name: str) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"/{name}" in line:
            return line.split(maxsplit=5)[5]
    return f"{name}.13"


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func] += 1
        return func(*args, **(kwargs or {}))


def per_call_us(call: Callable[[], object], number: int, blocks: int) -> float:
    times = []
    for _ in range(blocks):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(number):
            call()
        times.append((time.perf_counter() - begun) / number * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def captured(data: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            data.add_(1)
    return graph


def run(make: Callable[[], Any], windows_in_thread: bool) -> dict[str, Any]:
    begun = time.perf_counter()
    step, data = make_step(), torch.zeros(64, device="cuda")
    per_call_us(step, 50, 1)
    graphs = [captured(data)]

    def measured() -> dict[str, float]:
        found = {
            "launch_us": per_call_us(lambda: data.add_(1), 600, 5),
            "step_us": per_call_us(step, 25, 4),
            "replay_us": per_call_us(lambda: [each.replay() for each in graphs], 100, 3)
            / len(graphs),
        }
        return {key: round(value, 2) for key, value in found.items()}

    measured()
    before = [measured() for _ in range(3)]
    way = make()
    row: dict[str, Any] = {"ready_s": round(time.perf_counter() - begun, 2), "before": before}
    row["after"], row["inside_us"], row["window_s"], row["open_s"], row["close_s"] = (
        [],
        [],
        [],
        [],
        [],
    )
    for cycle in range(CYCLES):
        done, failed = threading.Event(), []

        def window(done: threading.Event = done, failed: list[str] = failed) -> None:
            try:
                a = time.perf_counter()
                way.open()
                b = time.perf_counter()
                time.sleep(WINDOW_S)
                c = time.perf_counter()
                row["counts"] = way.close()
                d = time.perf_counter()
                row["open_s"].append(round(b - a, 5))
                row["close_s"].append(round(d - c, 5))
                row["window_s"].append(round(d - a, 5))
            except BaseException as error:
                failed.append(repr(error))
            finally:
                done.set()

        steps, a = 0, time.perf_counter()
        if windows_in_thread:
            thread = threading.Thread(target=window)
            thread.start()
            while not done.is_set():
                step()
                steps += 1
            thread.join()
        else:
            mode = Calls()
            with mode:
                while time.perf_counter() - a < WINDOW_S:
                    step()
                    steps += 1
            row["counts"] = {str(key): n for key, n in mode.counts.items()}
            row["window_s"].append(time.perf_counter() - a)
        row["inside_us"].append(round((time.perf_counter() - a) / steps * 1e6, 1))
        if failed:
            row["failed"] = failed
            break
        for each in graphs:
            each.replay()
        torch.cuda.synchronize()
        if cycle == 1:
            graphs.append(captured(data))
        row["after"].append(measured())
    if hasattr(way, "read") and "failed" not in row:
        row["known_work"] = known_work(way, graphs[0])
    row["took_s"] = round(time.perf_counter() - begun, 2)
    return row


def known_work(way: Callbacks, graph: Any) -> dict[str, dict[str, int]]:
    """Which callbacks come for single pieces of work."""
    data, other = torch.zeros(64, 64, device="cuda"), torch.zeros(64, 64)
    pinned, event = torch.zeros(64, 64).pin_memory(), torch.cuda.Event()
    pieces: dict[str, Callable[[], object]] = {
        "add_": lambda: data.add_(1),
        "mm": lambda: torch.mm(data, data),
        "item": lambda: data[0, 0].item(),
        "to cpu": lambda: data.cpu(),
        "to cuda": lambda: other.cuda(),
        "pinned": lambda: data.copy_(pinned, non_blocking=True),
        "clone": lambda: data.clone(),
        "zero_": lambda: data.zero_(),
        "replay": graph.replay,
        "synchronize": torch.cuda.synchronize,
        "event": lambda: (event.record(), event.synchronize()),
        "softmax": lambda: data.softmax(0),
        "nonzero": lambda: data.nonzero(),
    }
    found = {}
    for name, piece in pieces.items():
        piece()
        torch.cuda.synchronize()
        way.open()
        ctypes.memset(way.counts, 0, ctypes.sizeof(way.counts))
        piece()
        found[name] = way.close()
        torch.cuda.synchronize()
    return found


VARIANTS: dict[str, tuple[dict[str, str | None], Callable[[], Any], bool]] = {
    "control": ({}, Nothing, True),
    "kineto as now": ({"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}, Kineto, True),
    "kineto torn down": ({"TEARDOWN_CUPTI": "1"}, Kineto, True),
    "kineto torn down, not lazily": (
        {"TEARDOWN_CUPTI": "1", "DISABLE_CUPTI_LAZY_REINIT": "1"},
        Kineto,
        True,
    ),
    "callbacks, all": ({}, lambda: Callbacks(False), True),
    "callbacks, chosen": ({}, lambda: Callbacks(True), True),
    "callbacks, chosen, subscribed for good": ({}, lambda: Callbacks(True, stays=True), True),
    "callbacks, chosen, finalized": ({}, lambda: Callbacks(True, finalizes=True), True),
    "dispatch mode": ({}, Nothing, False),
}


def main() -> None:
    out, begun = Path(sys.argv[1]), time.monotonic()
    os.environ["KINETO_LOG_LEVEL"] = "99"
    with out.open("w") as file:
        for name, (environment, make, in_thread) in VARIANTS.items():
            if time.monotonic() - begun > LIMIT_S:
                break
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                os.environ.update({key: value for key, value in environment.items() if value})
                try:
                    text = json.dumps(run(make, in_thread))
                except BaseException:
                    text = json.dumps({"error": traceback.format_exc()[-600:]})
                with os.fdopen(write, "w") as pipe:
                    pipe.write(text)
                os._exit(0)
            os.close(write)
            timer = threading.Timer(15.0, os.kill, (child, signal.SIGKILL))
            timer.start()
            with os.fdopen(read) as pipe:
                text = pipe.read()
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            timer.cancel()
            row = {"variant": name, "status": status, **json.loads(text or "{}")}
            row.setdefault("at_s", round(time.monotonic() - begun, 1))
            file.write(json.dumps(row) + "\n")
            file.flush()
            shown = {
                key: value for key, value in row.items() if key not in ("counts", "known_work")
            }
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
