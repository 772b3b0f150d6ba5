"""Whole analyses from a cold start, each in a process of its own -> wall time, CPU time and peak memory.

Aims on 2 cores: a small sample in 8 s, BERT base (12 layers, hidden 768, sequence 128, batch 1) in 30 s,
the same as a training step with AdamW in 120 s, BERT large in 15 s, a Llama of 1.1 billion weights, SAM and
torchvision's detection models in 60 s each; on the meta device a Llama of 7 billion in 60 s, of 70 billion in 120 s.
Arguments choose targets by a part of their names; those that start with a dash go to `graphdoctor analyze`,
such as --strategies=none. CPU time is what other work on the machine hardly changes,
with OMP_NUM_THREADS=1: threads that wait for each other spin.
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
    ("benchmarks/speed/models/bert.py:large", 15),
    ("benchmarks/speed/models/llama.py:inference", 60),
    *(
        (f"benchmarks/speed/models/vision.py:{name}", 60)
        for name in ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "ssd", "sam")
    ),
    ("benchmarks/speed/models/llama_on_meta.py:seven_billion", 60),
    ("benchmarks/speed/models/llama_on_meta.py:seventy_billion", 120),
)


def main() -> None:
    import torch

    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores of {_processor()}, load {load:.1f}, Python {platform.python_version()},"
        f" torch {torch.__version__}, {datetime.date.today()}"
    )
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    wanted = [word for word in sys.argv[1:] if word not in options] or [""]
    for target, aim_s in TARGETS:
        if not any(part in target for part in wanted):
            continue
        wall_s, cpu_s, peak_mb, status = _run(target, options)
        print(
            f"{target:44} {wall_s:6.1f} s (aim {aim_s} s), CPU {cpu_s:6.1f} s, {peak_mb:6.0f} MB, exit {status}",
            flush=True,
        )


def _run(target: str, options: list[str]) -> tuple[float, float, float, int]:
    """Seconds, seconds of the processor, MB and the exit status of one `graphdoctor analyze`."""
    command = [sys.executable, "-m", "graphdoctor", "analyze", str(ROOT / target)]
    started = time.monotonic()
    child = os.posix_spawn(
        sys.executable,
        [*command, "--device", "emulated", *options],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, usage = os.wait4(child, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    peak_mb = usage.ru_maxrss / 1024
    return time.monotonic() - started, cpu_s, peak_mb, os.waitstatus_to_exitcode(status)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
