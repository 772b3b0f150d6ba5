"""Time, memory and sizes of reports of a job's ranks, read by one process, by a pool or by a local dask cluster.

    python benchmarks/speed/trace_ranks.py [--ranks 64] [--events 200000] [--by one,pool,dask,copies]
                                           [--workers 2] [--copies 1024] [--folder DIR] [--json FILE]
    python benchmarks/speed/trace_ranks.py --fit benchmarks/data/trace_ranks.json [--below 256]

Makes the traces itself: all ranks run the same kernels and collectives, each begins its collectives at a time of
its own, and one of them 0.3 ms later than the others. Each row is a fresh process that reads all ranks. `peak_mb` is
the peak of its memory, `workers_mb` the largest of the processes that read for it, `scheduler_mb` that of dask's
scheduler. `rank_kb` is what a worker sends back for one rank. `--folder` keeps the traces. `--json` adds the run to
those that the file has. The row `copies` measures the asking machine with more ranks than there is room for:
it gets the answers for the first four ranks over and over. `--fit` measures nothing: it fits the CPU time for
a rank and for an event, and a worker's memory, to the runs of fewer ranks, and holds the fit against every run.
`in_full` ranks of a large job are read twice.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.regimes import RegimeTrace

ROOT = Path(__file__).parents[2]
_STEPS = 5
_EVENTS_PER_KERNEL = 6
_EACH = 500  # events for each collective
_LARGE = 24  # ranks: of a small job none is read twice
_AIM = 200_000  # events of a rank in the runs that are held against the aim
_LATE = 3  # the rank that the others wait for
_READ = """
import hashlib, json, pickle, resource, socket, subprocess, sys, tempfile, time
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from msgspec import structs
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace.explain import folder
from graphdoctor.trace.explain.trace_report import TraceOptions

def peak():  # getrusage would count what the process that started this one held
    status = Path("/proc/self/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024)

class Copies(Executor):
    def __init__(self, answers, copies):
        self.answers, self.given, self.copies = answers, 0, copies

    def submit(self, explain, file):  # of four ranks only rank 3 is late, and so of the copies
        number, future = self.given, Future()
        self.given += 1
        if number >= self.copies:
            future.set_result(explain(file))
            return future
        report, lane = pickle.loads(self.answers[number if number <= 3 else number % 3])
        lane = replace(lane, groups=((),) * len(lane.groups))  # the group of all, which torch cuts short
        future.set_result((structs.replace(report, worker=f"rank {number}", file=str(file)), lane))
        return future

def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

def main():
    path, by, workers, copies = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    out, options, tell = {"by": by}, TraceOptions(), lambda text: None
    began = time.perf_counter()
    if by == "dask":
        from distributed import Client
        port, python = free_port(), [sys.executable, "-m"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        one = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        others = ["distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nworkers", str(workers),
                  "--nthreads", "1", "--no-dashboard"]
        started = [subprocess.Popen(python + command, **quiet) for command in (one, others)]
        try:
            with Client(f"tcp://127.0.0.1:{port}", timeout=60) as client:
                client.wait_for_workers(workers, timeout=60)
                idle = max(client.run(peak).values()), client.run_on_scheduler(peak)
                began = time.perf_counter()
                report = folder.explain_folder(path, options, tell, executor=client.get_executor(pure=False))
                out["wall_s"] = time.perf_counter() - began
                out["workers_mb"], out["scheduler_mb"] = max(client.run(peak).values()), client.run_on_scheduler(peak)
                out["idle_workers_mb"], out["idle_scheduler_mb"] = idle
        finally:
            for process in started[::-1]:
                process.terminate()
                process.wait()
    elif by == "pool":
        with folder.process_pool(path, None) as pool:
            report = folder.explain_folder(path, options, tell, executor=pool)
        out["workers_mb"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
    elif by == "copies":
        files = sorted(path.iterdir())
        answers = [pickle.dumps(folder._explain_rank(options, None, True, file)) for file in files]
        out["read_mb"] = peak()
        with tempfile.TemporaryDirectory() as many:
            for number in range(copies):
                Path(many, f"rank{number:04}.json").symlink_to(files[number % len(files)])
            began = time.perf_counter()
            report = folder.explain_folder(Path(many), options, tell, executor=Copies(answers, copies))
    else:
        report = folder.explain_folder(path, options, tell)
    out.setdefault("wall_s", time.perf_counter() - began)
    out["wall_s"] = round(out["wall_s"], 2)
    seconds = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    out["cpu_s"] = round(sum(one.ru_utime + one.ru_stime for one in seconds), 2)
    out["peak_mb"] = peak()
    first = folder._explain_rank(options, None, True, sorted(path.iterdir())[0])
    out["rank_kb"] = round(len(pickle.dumps(first)) / 1e3, 1)
    text = written(report)
    out["sha256"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    out["json_mb"] = round(len(text) / 1e6, 2)
    out["html_mb"] = round(len(written_as("html", report, Look(base="")).encode()) / 1e6, 2)
    out["straggler"] = report.ranks.straggler if report.ranks else ""
    out["ranks"], out["failures"] = len(report.workers), list(report.failures)
    out["in_full"] = sum(one.drawn is not None for one in report.workers)
    print(json.dumps(out))

if __name__ == "__main__":
    main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--by", default="one,pool")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--copies", type=int, default=1024)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--below", type=int, default=256)
    options = parser.parse_args()
    if options.fit:
        fit(json.loads(options.fit.read_text(encoding="utf-8"))["runs"], options.below)
        return
    rows = []
    kept = nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with kept as folder, tempfile.TemporaryDirectory() as scripts:
        script = Path(scripts) / "read_ranks.py"  # a file, since spawned processes import it
        script.write_text(_READ, encoding="utf-8")
        traces = Path(folder)
        traces.mkdir(exist_ok=True)
        if not any(traces.iterdir()):
            make(traces, options.ranks, options.events)
        for by in options.by.split(","):
            done = subprocess.run(
                [
                    *(sys.executable, str(script), str(traces), by),
                    *(str(options.workers), str(options.copies)),
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1])
    if options.json:
        run = {"ranks": options.ranks, "events": options.events, "rows": rows}
        found = _about() | {"runs": []}
        if options.json.exists():
            found = json.loads(options.json.read_text(encoding="utf-8"))
        found["runs"].append(run | {"load": [round(one, 1) for one in os.getloadavg()]})
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def fit(runs: list[dict[str, Any]], below: int) -> None:
    """Print what the runs of two dozen ranks and more, but fewer than `below`, foresee of every run."""
    found = [(run, row) for run in runs for row in run["rows"] if run["ranks"] >= _LARGE]

    def terms(run: dict[str, Any], row: dict[str, Any]) -> list[float]:
        read = run["ranks"] + row["in_full"]
        return [1, read, read * run["events"] / 1e6]

    small = [(run, row) for run, row in found if run["ranks"] < below and run["events"] != _AIM]
    alone = [(run, row) for run, row in small if row["by"] == "one"]
    slopes = np.linalg.lstsq(
        np.array([terms(*one) for one in alone]), np.array([row["cpu_s"] for _, row in alone]), None
    )[0]
    remote = [(run["events"] / 1e6, row["workers_mb"]) for run, row in small if row["by"] == "dask"]
    each_mb, least_mb = np.polyfit(*np.array(remote).T, 1)
    print("CPU s: {:.2f}, {:.4f} for a rank, {:.3f} for a million events".format(*slopes))
    print(f"MB of a worker: {least_mb:.0f}, and {each_mb:.0f} for a million events")
    for run, row in found:
        text = f"{run['ranks']} x {run['events']} by {row['by']}: "
        if row["by"] == "dask":  # its CPU time has the start of its processes in it
            predicted = least_mb + each_mb * run["events"] / 1e6
            print(f"{text}{predicted:.0f} MB predicted, {row['workers_mb']} MB measured")
        else:
            print(f"{text}{terms(run, row) @ slopes:.1f} s predicted, {row['cpu_s']} s measured")


def make(folder: Path, ranks: int, events: int) -> None:
    """A trace for each rank. What the ranks compute is the same, so it is simulated once."""
    kernels = max(1, (events - events // _EACH) // (_STEPS * _EVENTS_PER_KERNEL))
    text = io.StringIO()
    trace = RegimeTrace("mixed", kernels=kernels, steps=_STEPS)
    truth = trace.write(text)
    _, _, body = text.getvalue().partition('"traceEvents": [')
    count = max(8, events // _EACH)
    apart_us = truth.span / 1e3 / count
    for rank in range(ranks):
        about = {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
            "distributedInfo": {"rank": rank, "world_size": ranks, "backend": "nccl"},
        }
        collectives = "".join(
            f"\n  {json.dumps(one)}," for one in _collectives(rank, ranks, count, apart_us)
        )
        with (folder / f"rank{rank:04}.json").open("w", encoding="utf-8") as file:
            file.write(f'{json.dumps(about)[:-1]}, "traceEvents": [{collectives}{body}')


def _collectives(rank: int, ranks: int, count: int, apart_us: float) -> list[dict[str, Any]]:
    drawn, base_us = random.Random(rank), 4_317_453_815_758
    found = []
    for number in range(count):
        at = base_us + number * apart_us
        late = drawn.uniform(0, 40) + (300 if rank == _LATE else 0)
        found.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "pid": 0,
                "tid": 20,
                "ts": round(at + late, 3),
                "dur": round(400 - late, 3),
                "args": {
                    "device": 0,
                    "stream": 20,
                    "correlation": 10_000_000 + number,
                    "Collective name": "allreduce",
                    "In msg nelems": 1 << 20,
                    "Out msg nelems": 1 << 20,
                    "dtype": "BFloat16",
                    "Process Group Name": "0",
                    "Process Group Ranks": _group(ranks),
                },
            }
        )
    return found


def _group(ranks: int) -> str:
    """As torch writes it, which names the first 30."""
    named = ", ".join(map(str, range(min(ranks, 30))))
    return f"[{named}, ...]" if ranks > 30 else f"[{named}]"


def _about() -> dict[str, Any]:
    versions = {}
    for name in ("distributed", "msgspec", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "date": date.today().isoformat(),
        "machine": f"{len(os.sched_getaffinity(0))} cores of {model}",
        "python": platform.python_version(),
        "versions": versions,
    }


if __name__ == "__main__":
    main()
