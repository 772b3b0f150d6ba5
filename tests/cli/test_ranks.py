"""`graphdoctor analyze` as each rank of a launcher: one page, of what all of them found."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from tests.support import warm

MODEL = """
import torch
import torch.distributed as dist

def whole():
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    def step(x):
        y = x * (rank + 1)
        dist.all_reduce(y)
        return y + 1

    return step, (torch.ones(4, 4, device="cuda"),)

def one_waits():
    step, inputs = whole()

    def waiting(x):
        if dist.get_rank() == 1:
            torch.cuda.synchronize()
        return step(x)

    return waiting, inputs
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def on_two_ranks(folder: Path, name: str) -> list[str]:
    """What each rank prints."""
    (folder / "model.py").write_text(MODEL)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            warm.command(warm.CLI, "analyze", f"model.py:{name}", "--isolated"),
            cwd=folder,
            env={
                **os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        return [process.communicate(timeout=100)[0] for process in started]
    finally:
        for process in started:
            process.kill()


def test_ranks_replay_a_collective_in_step_and_rank_0_prints_for_all(tmp_path: Path) -> None:
    first, second = on_two_ranks(tmp_path, "whole")
    assert second == ""
    assert first.startswith("SAFE")
    assert "On all 2 ranks: " in first
    assert "equal to eager (bitwise)" in first


def test_a_hazard_of_one_rank_is_a_hazard_of_the_step_and_says_whose(tmp_path: Path) -> None:
    first, _ = on_two_ranks(tmp_path, "one_waits")
    assert first.startswith("UNSAFE")
    assert "GD108" in first
    assert "On rank 1 only: " in first
