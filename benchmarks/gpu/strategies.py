"""The GPU evidence in one call -> benchmarks/data/results/<gpu>_torch<version>.jsonl, one line for each case.

    python benchmarks/gpu/strategies.py [--results FOLDER] [--deadline-s 520] [--only TEXT]

Runs what benchmarks/gpu/cases.py lists: each case a command in a process of its own, one at a time on each
GPU that is visible, with its share of the CPU's cores. Resumable: what the file has already is not run
again, and the deadline ends the call between cases (and ends a case that would pass it).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import Case, cases
from samples_and_rules import ROOT

LONGEST_S = 300.0
_MACHINE_PATHS = re.compile(
    r"/[\w./+-]*/(?=(site-packages|dist-packages|sample_models|benchmarks)/)"
)


@dataclass(frozen=True, slots=True)
class Share:
    """One GPU and the cores that belong to it while several work."""

    gpu: str
    cores: frozenset[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/data/results")
    parser.add_argument("--deadline-s", type=float, default=520)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args()
    ends = time.monotonic() + args.deadline_s
    name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "_").lower()
    version = ".".join(str(torch.__version__).split(".")[:2])
    results = args.results / f"{name}_torch{version}.jsonl"
    done = _done(results)
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases():
        if args.only in case.name and case.name not in done:
            waiting.put(case)
    writer = _Writer(results)
    writer.write({"about": _about()})
    workers = [
        threading.Thread(target=_work, args=(share, waiting, writer, ends)) for share in _shares()
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{waiting.qsize()} cases left")


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, row: dict[str, Any]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as out:
            out.write(_MACHINE_PATHS.sub("", json.dumps(row)) + "\n")


def _done(results: Path) -> set[str]:
    if not results.exists():
        return set()
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return {row["case"] for row in rows if "case" in row and "error" not in row}


def _about() -> dict[str, object]:
    query = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
    seen = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "nvidia_smi": seen.stdout.strip().splitlines(),
        "query": query,
    }


def _shares() -> list[Share]:
    count = torch.cuda.device_count()
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // count)
    return [
        Share(str(gpu), frozenset(cores[gpu * each : (gpu + 1) * each])) for gpu in range(count)
    ]


def _work(share: Share, waiting: queue.SimpleQueue[Case], writer: _Writer, ends: float) -> None:
    while (left_s := ends - time.monotonic()) > 15:
        try:
            case = waiting.get_nowait()
        except queue.Empty:
            return
        started = time.monotonic()
        row = _run(case, share, min(left_s, LONGEST_S))
        wall_s = round(time.monotonic() - started, 1)
        writer.write({"case": case.name, **row, "wall_s": wall_s})
        print(f"{case.name}: {wall_s} s{' ERROR' if 'error' in row else ''}", flush=True)


def _run(case: Case, share: Share, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, *(part.replace("{out}", str(out)) for part in case.command)]
        threads = str(max(1, len(share.cores) // 4))
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": share.gpu,
            "OMP_NUM_THREADS": threads,
            "TORCHINDUCTOR_COMPILE_THREADS": threads,
        }
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            os.sched_setaffinity(process.pid, share.cores)
            try:
                _, said = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                return {"error": f"did not end within {limit_s:.0f} s"}
        if process.returncode != 0 or not out.exists():
            return {"error": said[-1500:], "exit": process.returncode}
        return _read(out)


_KEPT = (
    "verdict",
    "reason",
    "target",
    "estimate",
    "measurement",
    "captures",
    "strategies",
    "recommendation",
    "limits",
    "operators",
)


def _read(out: Path) -> dict[str, Any]:
    text = out.read_text(encoding="utf-8")
    if not text.startswith("{"):
        return {"text": text}
    whole = json.loads(text)
    if "verdict" not in whole:
        return {"json": whole}
    return {
        **{key: whole.get(key) for key in _KEPT},
        "findings": [
            [each["rule"], each["message"][:200], (each["location"] or {}).get("line")]
            for each in whole["findings"]
        ],
    }


if __name__ == "__main__":
    main()
