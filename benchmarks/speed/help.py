"""Wall time of `graphdoctor --help` in a fresh interpreter, beside Python's own. Prints ms."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 15
LIMIT_MS = 150


def wall_ms(*arguments: str) -> float:
    """The median over several runs, and not their minimum: it is what a person waits for."""
    times_ms = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        times_ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times_ms)


def main() -> None:
    print(f"python -c pass      {wall_ms('-c', 'pass'):6.1f} ms")
    print(
        f"graphdoctor --help  {wall_ms('-m', 'graphdoctor', '--help'):6.1f} ms (limit {LIMIT_MS})"
    )


if __name__ == "__main__":
    main()
