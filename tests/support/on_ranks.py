"""A model's file and a number of ranks -> what `graphdoctor analyze --ranks` says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support import warm

# A step whose collective all ranks call; what rank 1 does before it is `bad`.
AGREEING = """\
import torch
import torch.distributed as dist

def rank():
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    return dist.get_rank()

def agreeing(bad=lambda: None):
    me = rank()

    def step(x):
        if me == 1:
            bad()
        y = x * (me + 1)
        dist.all_reduce(y)
        return y + 1

    return step, (torch.ones(4, 4, device="cuda"),)
"""


def analyzed(
    folder: Path, source: str, name: str, *arguments: str, ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    """Its page, its errors and its exit code."""
    (folder / "model.py").write_text(source)
    limit = () if "--time-limit" in arguments else ("--time-limit", "100")
    return subprocess.run(
        warm.command(
            warm.CLI,
            "analyze",
            f"model.py:{name}",
            "--isolated",
            "--ranks",
            str(ranks),
            *limit,
            *arguments,
        ),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )


def words(text: str) -> str:
    """Without the lines of a page."""
    return " ".join(text.split())
