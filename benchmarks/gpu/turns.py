"""Processes that prepare side by side, and then have their turn at their GPU one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import COMPILING

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
