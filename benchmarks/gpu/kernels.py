"""Workloads that predictions are judged by, kernel by kernel -> benchmarks/data/kernels_<gpu>_torch<version>.jsonl.gz.

    python benchmarks/gpu/kernels.py OUT.jsonl [--budget-s 150] [--processes 3] [--only PATTERN]

Of each workload: every operator of one eager step with the kernels that it launched and what they took, as a
profiler saw them; eager's wall time beside that of the whole step as one graph, in turns; what that graph's
memory pool holds. The first line tells the machine and what `graphdoctor calibrate --host` says of its host, so that
predictions without a GPU can be judged for a host that was calibrated. Models are built side by side; whoever uses the
GPU is alone on it. Lines are added as they come, and what the file has already is not run again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cases import families, workloads

ROOT = Path(__file__).resolve().parents[2]
MEASURE_S = 0.5  # six pairs of blocks at least
PROFILED_STEPS = 2
FEW_CALLS = 4  # in a row, of a step that may count them
LONGEST_NAME = 140
_ANSWER = "answer: "


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-s", type=float, default=600.0, help="no workload begins later")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--only", default="", help="a pattern of workloads")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        _work(args.work)
        return
    ends = time.monotonic() + args.budget_s
    done = _done(args.out)
    if not done:
        write(args.out, about())
    waiting = [case for case in cases() if case not in done and re.search(args.only, case)]
    with (
        tempfile.NamedTemporaryFile() as lock,
        ThreadPoolExecutor(args.processes) as pool,
    ):
        queue = iter(waiting)
        taking = threading.Lock()

        def serve() -> None:
            worker: subprocess.Popen[str] | None = None
            while time.monotonic() < ends:
                with taking:
                    case = next(queue, None)
                if case is None:
                    break
                worker = worker or _worker(lock.name)
                row = _asked(worker, case)
                if "error" in row:  # it may have spoilt CUDA
                    _end(worker)
                    worker = None
                with taking:
                    write(args.out, row)
                print(f"{time.monotonic() - ends + args.budget_s:.0f} s: {_short(row)}", flush=True)
            if worker is not None:
                _end(worker)

        for served in [pool.submit(serve) for _ in range(args.processes)]:
            served.result()


def cases() -> list[str]:
    """Families of which nothing but busy time was measured on a quiet machine come first."""
    every = [*families(), *workloads()]
    return list(dict.fromkeys(one.name for one in every))


def _done(path: Path) -> set[str]:
    if not path.exists():
        return set()
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row.get("case", "about") for row in rows if "error" not in row}


def write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def _short(row: dict[str, Any]) -> str:
    kept = ("case", "eager_us", "graph_us", "pool_bytes", "refused", "error", "took_s")
    return ", ".join(f"{key} {row[key]}" for key in kept if key in row)[:300]


def about() -> dict[str, Any]:
    """The machine, and its host as the command calibrates it, before anything else runs there."""
    import datetime
    import platform

    import torch

    host = subprocess.run(
        [sys.executable, "-m", "graphdoctor", "calibrate", "--host"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "host": host.stdout,
        "host_seen": host.stderr.splitlines(),
    }


def _worker(lock: str) -> subprocess.Popen[str]:
    command = (sys.executable, __file__, "unused", "--work", lock)
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()


def _asked(worker: subprocess.Popen[str], case: str) -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    said: list[str] = []
    try:
        worker.stdin.write(case + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            if line.startswith(_ANSWER):
                return {"case": case, **json.loads(line.removeprefix(_ANSWER))}
            said.append(line)
    except BrokenPipeError:
        pass
    return {"case": case, "error": "".join(said)[-800:] or "the process ended"}


def _work(lock: Path) -> None:
    """One case after the other, from standard input."""
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks/truth")]
    for line in sys.stdin:
        began = time.monotonic()
        try:
            row = _measured(line.strip(), lock)
        except Exception as error:  # the others are still to be measured
            row = {"error": f"{type(error).__name__}: {str(error)[:600]}"}
        row["took_s"] = round(time.monotonic() - began, 1)
        print(_ANSWER + json.dumps(row), flush=True)


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    with lock.open("r") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _measured(case: str, lock: Path) -> dict[str, Any]:
    import gc

    import torch

    from graphdoctor.pipeline.setting import open_setting, put_back, silent
    from graphdoctor.record.place import place
    from graphdoctor.target import resolve
    from graphdoctor.values.options import AnalyzeOptions

    with open_setting(AnalyzeOptions(gpu="h200"), silent) as setting:
        target = resolve(str(ROOT / case), mode=None, inputs=())
        with put_back(target):
            placed = place(target, setting.device)
            with _turn(lock), tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "step.pt.trace.json"
                row = _timed(placed, trace)
                row["operators"] = _operators(trace)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return row


def _timed(target: Any, trace: Path) -> dict[str, Any]:
    from graphdoctor.graphs.capture import Pool
    from graphdoctor.graphs.cause import Refusal
    from graphdoctor.graphs.whole_step import capture_whole_step, fresh_inputs
    from graphdoctor.measure.profile import ready_for_graphs
    from graphdoctor.measure.wall_clock import Blocks, blocks_for, measure
    from graphdoctor.target import snapshot

    inputs = fresh_inputs(target)

    def eager() -> object:
        return target.step(*inputs.args, **inputs.kwargs)

    ready_for_graphs()
    for _ in range(3):
        eager()
    start = snapshot(target.roots)
    _profile(eager, trace)
    start.restore()
    pool = Pool()
    captured = capture_whole_step(target, pool=pool)
    if isinstance(captured, Refusal):
        few = Blocks(most_calls=FEW_CALLS, prepare=start.restore)
        same = measure(eager, eager, budget_s=MEASURE_S, blocks=few)
        return {"eager_us": round(same.eager_us, 1), "refused": str(captured.reason)[:200]}
    held = pool.reserved_bytes
    blocks = blocks_for(captured, verified_calls=FEW_CALLS)
    found = measure(eager, lambda: captured.call(inputs), budget_s=MEASURE_S, blocks=blocks)
    captured.release()
    return {
        "eager_us": round(found.eager_us, 1),
        "graph_us": round(found.graph_us, 1),
        "speedup": [found.speedup_low, found.speedup, found.speedup_high],
        "clock_note": found.clock_note,
        "pool_bytes": held,
    }


def _profile(run: Any, trace: Path) -> None:
    """With shapes, which slow the host and not the device."""
    import torch
    from torch.profiler import profile, schedule, supported_activities

    plan = schedule(wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
    with profile(
        activities=supported_activities(),
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
    ) as profiler:
        for _ in range(PROFILED_STEPS + 1):
            run()
            torch.cuda.synchronize()
            profiler.step()


def _operators(trace: Path) -> list[list[Any]]:
    """Those that launch: name, shapes, types, and for each kernel its name, runs and us a step.

    The parts of operators that took other operators are told where they launched.
    """
    from trace_shapes import shapes_of

    from graphdoctor.trace import operators_of_events, read_trace

    read = read_trace(trace)
    recorded = shapes_of(trace, read)
    events, owners = read.device_events, operators_of_events(read).tolist()
    lengths = (events.end_ns - events.start_ns).tolist()
    found: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for owner, name, length in zip(owners, events.name.tolist(), lengths, strict=True):
        called = ["", [], []]
        if owner >= 0:
            shapes = recorded[owner]
            operator = read.names[read.operators.name[owner]]
            called = [operator, shapes.dims or [], shapes.dtypes or []]
        kernels = found[json.dumps(called)]
        total = kernels.setdefault(read.names[name][:LONGEST_NAME], [0, 0])
        total[0] += 1
        total[1] += length
    return [
        [
            *json.loads(called),
            [
                [name, runs / PROFILED_STEPS, round(ns / 1e3 / PROFILED_STEPS, 2)]
                for name, (runs, ns) in kernels.items()
            ],
        ]
        for called, kernels in found.items()
    ]


if __name__ == "__main__":
    main()
