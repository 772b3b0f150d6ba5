"""A benchmark's file -> a process of it for each GPU of this host, which meet at a port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_on_ranks(script: str, json: Path, *, ranks: int, port: int) -> int:
    """Run `script --json FILE` once a rank, with RANK set; the worst of their exit codes."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_NVLS_ENABLE": "0",
    }
    command = [sys.executable, script, "--json", str(json)]
    started = [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    return max(abs(each.wait()) for each in started)
