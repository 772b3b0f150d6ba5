"""The GPU evidence -> benchmarks/data/results/<gpu>_torch<version>.jsonl, one line for each measured cell.

    python benchmarks/gpu/strategies.py [--results FOLDER] [--deadline-s 520] [--only PATTERN] [--commands]
    python benchmarks/gpu/strategies.py --families --results benchmarks/data/families [--strategies whole]

Each strategy on each workload of benchmarks/gpu/cases.py is a process of its own. As many as
`--processes` build, compile, capture and verify side by side, spread over the GPUs, with the compilers'
caches shared; when all are ready, each times its step alone on its idle GPU, one after the other. A process
that crashed or ran out of memory beside others is tried once more, alone, before that is called its result.
`--commands` runs the sweeps and the other commands instead, `--families` the models that docs/prediction.md judges by.

Resumable: what the file has already is not run again, and the deadline ends the call between turns. With
`--again` those are, too, whose times docs/results.md marks, since eager was slower beside them than elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import COMPILING, SLOWEST, Command, commands, families, workloads
from samples_and_rules import ROOT

sys.path.insert(0, str(ROOT / "benchmarks/pages"))

from comparison import compared

LONGEST_S = 300.0
_MACHINE_PATHS = re.compile(
    r"/[\w./+-]*/(?=(site-packages|dist-packages|sample_models|benchmarks|graphdoctor)/)"
)
_NO_MEMORY = ("out of memory", "memory ran out", "do not fit into memory")
_SECONDS_A_TURN = 4.0
_LEAST_PREPARE_S = 75.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/data/results")
    parser.add_argument("--deadline-s", type=float, default=520)
    parser.add_argument("--only", default="", help="a pattern of workloads or commands")
    parser.add_argument(
        "--strategies", default="", help="of these strategies, such as whole,compile"
    )
    parser.add_argument("--processes", type=int, default=24)
    parser.add_argument("--prepare-s", type=float, default=150)
    parser.add_argument(
        "--again", action="store_true", help="also what was timed while the host did other work"
    )
    parser.add_argument("--commands", action="store_true")
    parser.add_argument(
        "--families", action="store_true", help="measure what predictions are judged by instead"
    )
    args = parser.parse_args()
    name = torch.cuda.get_device_name().replace("NVIDIA ", "").replace(" ", "_").lower()
    version = ".".join(str(torch.__version__).split(".")[:2])
    results = Results(args.results / f"{name}_torch{version}.jsonl")
    results.write({"about": _about()})
    ends = time.monotonic() + args.deadline_s
    if args.commands:
        _run_commands(args.only, results, ends)
        return
    asked = [part for part in args.strategies.split(",") if part]
    cells = [
        Cell(each.name, strategy)
        for each in (families() if args.families else workloads())
        for strategy in each.strategies
        if re.search(args.only, each.name) and (not asked or strategy in asked)
    ]
    marked = results.disturbed() if args.again else set()
    waiting = [
        cell
        for cell in cells
        if (cell.case, cell.strategy) in marked or not results.has(cell.case, cell.strategy)
    ]
    waiting.sort(key=lambda cell: cell.strategy == SLOWEST)
    with tempfile.TemporaryDirectory() as folder:
        left = _measure(waiting, results, Path(folder), args=args, ends=ends)
    print(f"{left} cells left")


class Results:
    """The file of lines, which is continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._rows = list(map(json.loads, lines))
        rows = [row for row in self._rows if "case" in row and "error" not in row]
        self._done = {(row["case"], row.get("strategy")) for row in rows}

    def has(self, case: str, strategy: str | None = None) -> bool:
        return (case, strategy) in self._done

    def disturbed(self) -> set[tuple[str, str]]:
        """Those that were timed while the host did other work."""
        return {
            (one.case, row.strategy)
            for one in compared(self._rows)
            for row in one.rows
            if row.status == "verified" and row.measurement is not None and not one.is_quiet(row)
        }

    def write(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as out:
            out.write(_MACHINE_PATHS.sub("", json.dumps(row)) + "\n")


def _measure(
    waiting: list[Cell], results: Results, folder: Path, *, args: argparse.Namespace, ends: float
) -> int:
    """Batch by batch; how many cells are left."""
    again: list[Cell] = []
    gpus = torch.cuda.device_count()
    while waiting and (count := min(args.processes, gpus * _that_fit(ends))) > 0:
        batch, waiting = waiting[:count], waiting[count:]
        begun = time.monotonic()
        until = min(begun + args.prepare_s, ends - _SECONDS_A_TURN * len(batch) / gpus)
        turns = prepared(batch, folder, root=ROOT, gpus=gpus, until_s=until)
        seconds = round(time.monotonic() - begun, 1)
        results.write({"prepared": len(batch), "seconds": seconds})
        print(f"prepared {len(batch)} in {seconds} s", flush=True)
        again.extend(_timed(turns, results, ends))
    for cell in again:
        if _that_fit(ends) > 0:
            until = ends - _SECONDS_A_TURN
            (turn,) = prepared([cell], folder, root=ROOT, gpus=1, until_s=until)
            results.write(_line(turn, _taken(turn, ends), alone=True))
    return len(waiting)


def _that_fit(ends: float) -> int:
    """How many can be prepared together and have a turn each on one GPU until then."""
    return int((ends - time.monotonic() - _LEAST_PREPARE_S) / _SECONDS_A_TURN)


def _timed(turns: list[Turn], results: Results, ends: float) -> list[Cell]:
    """Each in its turn, the GPUs side by side; those that have to be tried again, alone."""
    queues = [[turn for turn in turns if turn.gpu == gpu] for gpu in {turn.gpu for turn in turns}]
    with ThreadPoolExecutor(len(queues)) as threads:
        found = threads.map(lambda queue: [(turn, _taken(turn, ends)) for turn in queue], queues)
        timed = [each for queue in found for each in queue]
    beside = len(turns) - 1
    for turn, row in timed:
        if not (_is_to_repeat(row) and beside):
            results.write(_line(turn, row, alone=not beside))
    return [turn.cell for turn, row in timed if _is_to_repeat(row) and beside]


def _taken(turn: Turn, ends: float) -> dict[str, Any]:
    if turn.is_late:
        return {"error": "preparing it with the other strategies took too long"}
    if time.monotonic() > ends:
        turn.end()
        return {"error": "the call ended before its turn"}
    return turn.take()


def _is_to_repeat(found: dict[str, Any]) -> bool:
    reason = found.get("row", {}).get("reason", "")
    return found.get("exit", 0) < 0 or any(mark in reason for mark in _NO_MEMORY)


def _line(turn: Turn, found: dict[str, Any], *, alone: bool) -> dict[str, Any]:
    seconds = None if turn.prepared_s is None else round(turn.prepared_s, 1)
    line = {
        "case": turn.cell.case,
        "strategy": turn.cell.strategy,
        "alone": alone,
        "prepared_s": seconds,
        **found,
    }
    outcome = found.get("row", {})
    timed = outcome.get("measurement") or {}
    said = f"{timed['speedup']:.2f}x" if timed else outcome.get("reason") or found.get("error", "")
    state = outcome.get("status", "error")
    print(f"{line['case']} {line['strategy']}: {state} {said[:150]}", flush=True)
    return line


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


def _run_commands(only: str, results: Results, ends: float) -> None:
    for command in commands():
        left_s = ends - time.monotonic()
        if not re.search(only, command.name) or results.has(command.name) or left_s < 15:
            continue
        started = time.monotonic()
        row = _run(command, min(left_s, LONGEST_S))
        wall_s = round(time.monotonic() - started, 1)
        results.write({"case": command.name, **row, "wall_s": wall_s})
        print(f"{command.name}: {wall_s} s{' ERROR' if 'error' in row else ''}", flush=True)


def _run(command: Command, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        arguments = [part.replace("{out}", str(out)) for part in command.arguments]
        try:
            ended = subprocess.run(
                [sys.executable, *arguments],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"did not end within {limit_s:.0f} s"}
        if ended.returncode != 0 or not out.exists():
            return {"error": ended.stderr[-1500:], "exit": ended.returncode}
        return {"json": json.loads(out.read_text(encoding="utf-8"))}


TURN_S = 45.0  # the longest that one may take to time and profile


@dataclass(frozen=True, slots=True)
class Cell:
    """One strategy on one workload."""

    case: str
    strategy: str


class Turn:
    """benchmarks/gpu/row.py on one cell and one GPU: it prepares at once, and times when it is told to."""

    def __init__(
        self, cell: Cell, folder: Path, *, root: Path, gpu: int, compile_threads: int = 1
    ) -> None:
        self.cell = cell
        self.gpu = gpu
        self.prepared_s: float | None = None
        self.is_late = False
        name = f"{cell.case}-{cell.strategy}".replace("/", "_")
        self._out, self._said = folder / f"{name}.json", folder / f"{name}.txt"
        self._settled = threading.Event()
        self._begun_s = time.monotonic()
        command = (sys.executable, "benchmarks/gpu/row.py", cell.case, cell.strategy, self._out)
        with self._said.open("wb") as said:
            self._popen = subprocess.Popen(
                command,
                cwd=root,
                env=_environment(root, folder, gpu, compile_threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def settled(self, until_s: float) -> bool:
        """Wait until it is prepared, or has ended; False where neither was so in time."""
        return self._settled.wait(max(0.0, until_s - time.monotonic()))

    def take(self, limit_s: float = TURN_S) -> dict[str, Any]:
        """Let it time, and wait for its row; "error" and "exit" where there is none."""
        assert self._popen.stdin is not None
        with suppress(OSError):  # it ended before
            self._popen.stdin.write(b"\n")
            self._popen.stdin.flush()
        try:
            code = self._popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            return {"error": f"timing did not end within {limit_s:.0f} s"}
        finally:
            self.end()
        if code != 0 or not self._out.exists():
            said = self._said.read_text(encoding="utf-8", errors="replace")
            return {"error": said[-800:], "exit": code}
        return dict(json.loads(self._out.read_text(encoding="utf-8")))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, 9)
        self._popen.wait()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line == b"ready\n":
                self.prepared_s = time.monotonic() - self._begun_s
                self._settled.set()
        self._popen.wait()
        self._settled.set()


def _environment(root: Path, folder: Path, gpu: int, compile_threads: int) -> dict[str, str]:
    """All compile into the same caches, and see one GPU."""
    paths = (str(root), os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": str(compile_threads),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def prepared(
    cells: Sequence[Cell], folder: Path, *, root: Path, gpus: int, until_s: float
) -> list[Turn]:
    """All at once, spread over the GPUs; returns when each is prepared or has ended.

    At `until_s` of time.monotonic() those that are neither are ended: a compiler that still tries kernels
    would disturb the times of the others.
    """
    # Of the cells of one workload, only the first compiles at first.
    compilers = {cell.case for cell in cells if cell.strategy in COMPILING}
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, len(compilers)))
    turns = [
        Turn(cell, folder, root=root, gpu=place % gpus, compile_threads=threads)
        for place, cell in enumerate(cells)
    ]
    for turn in turns:
        if not turn.settled(until_s):
            turn.is_late = True
            turn.end()
    return turns


if __name__ == "__main__":
    main()
