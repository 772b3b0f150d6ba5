"""How long `graphdoctor check` of ten small models takes from a cold start: wall clock, median of three."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGETS = 10
RUNS = 3
GOAL_S = 15.0
MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))

    def forward(self, x):
        x = self.layers(x)
        if x.sum().item() > 100:
            x = x / 2
        return x.relu()


def graphdoctor_target():
    return Net(), (torch.randn(4, 16),)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(TARGETS):
            Path(folder, f"net{number}.py").write_text(MODEL, encoding="utf-8")
        times_s = [_check(folder) for _ in range(RUNS)]
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    listed = ", ".join(f"{time_s:.1f}" for time_s in times_s)
    print(f"{TARGETS} targets: {statistics.median(times_s):.1f} s ({listed}); goal {GOAL_S:g} s")


def _check(folder: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "graphdoctor", "check", ".", "--output-format=concise"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - start
    assert done.returncode == 1, done.stdout + done.stderr  # the .item() of each is new
    return wall_s


if __name__ == "__main__":
    main()
