"""Two processes that run the same command as ranks, and end as a launcher ends them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from datetime import timedelta
from pathlib import Path

from tests.support import warm

LIMIT_S = 100.0
TRIES = 3
LAST_WORDS_S = 10.0  # of the others, once one has failed
Ran = subprocess.CompletedProcess


def under_a_launcher(
    folder: Path, *words: str, variables: dict[str, str] | None = None
) -> list[Ran]:
    """The store is there before them and outlives them, as torchrun's; nobody else can take its port."""
    from torch._C._distributed_c10d import TCPStore

    limit = timedelta(seconds=LIMIT_S)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    told = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    return _ran(folder, words, {**told, **(variables or {})})


def started_by_hand(folder: Path, *words: str) -> list[Ran]:
    """With an address and nothing else; whoever takes the port before rank 0 does is no fault of theirs."""
    for _ in range(TRIES):
        ranks = _ran(folder, words, {"MASTER_PORT": str(_free_port())})
        if not any("EADDRINUSE" in rank.stderr for rank in ranks):
            break
    return ranks


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def _ran(folder: Path, words: tuple[str, ...], told: dict[str, str]) -> list[Ran]:
    """What each printed. Where one fails, the others are ended: they would wait for it."""
    shared = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", **told}
    limit = () if "--time-limit" in words else ("--time-limit", f"{LIMIT_S:g}s")
    command = warm.command(warm.CLI, words[0], *limit, *words[1:])
    files = [
        [(folder / f"{name}.{rank}").open("w+") for name in ("out", "err")] for rank in range(2)
    ]
    started = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=out,
            stderr=err,
        )
        for rank, (out, err) in enumerate(files)
    ]
    try:
        over_s = time.monotonic() + 1.5 * LIMIT_S
        while any(one.poll() is None for one in started) and time.monotonic() < over_s:
            if any(one.poll() for one in started):
                over_s = min(over_s, time.monotonic() + LAST_WORDS_S)
            time.sleep(0.02)
    finally:
        for process in started:
            process.kill()
    codes = [process.wait() for process in started]
    return [
        Ran(command, code, *(_read(file) for file in both))
        for code, both in zip(codes, files, strict=True)
    ]


def _read(file) -> str:
    with file:
        file.seek(0)
        text: str = file.read()
    return text
