"""Whole analyses from a cold start, each in a process of its own -> wall time and peak memory.

Aims on 2 cores: a small sample in 8 s, BERT base (12 layers, hidden 768, sequence 128, batch 1) in 30 s,
the same as a training step with AdamW in 120 s.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    ("sample_models/dynamic_branch.py", 8),
    ("benchmarks/speed/models/bert.py:inference", 30),
    ("benchmarks/speed/models/bert.py:training", 120),
)


def main() -> None:
    import torch

    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores of {_processor()}, load {load:.1f}, Python {platform.python_version()},"
        f" torch {torch.__version__}, {datetime.date.today()}"
    )
    for target, aim_s in TARGETS:
        wall_s, peak_mb, status = _run(target)
        print(f"{target:36} {wall_s:6.1f} s (aim {aim_s} s), {peak_mb:6.0f} MB, exit {status}")


def _run(target: str) -> tuple[float, float, int]:
    """Seconds, MB and the exit status of one `graphdoctor analyze`."""
    command = [sys.executable, "-m", "graphdoctor", "analyze", str(ROOT / target)]
    started = time.monotonic()
    child = os.posix_spawn(
        sys.executable,
        [*command, "--device", "emulated"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, usage = os.wait4(child, 0)
    return time.monotonic() - started, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
