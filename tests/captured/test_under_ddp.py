"""A captured module, and a captured step, under DistributedDataParallel: eager's results on each rank, by replays."""

from __future__ import annotations

import os
import socket
import subprocess

from tests.support import warm


def test_gradients_are_reduced_and_equal_to_eagers_on_each_rank() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            warm.command("tests.support.captured_under_ddp"),
            env={
                **os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=280)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for text in said:
        for way in ("before", "inside"):
            assert f"{way}: equal=True reduced=True" in text
        assert "step: equal=True shared=True" in text, text
        assert "21 calls of it were replayed" in text, text
        assert text.count("one graph for each of forward and backward") == 2
        assert text.count("3 calls of graphed modules were replayed") == 2
