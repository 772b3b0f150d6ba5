"""Ranks of a launcher of which one hangs or raises: all of them end in time, and it is said which one it was."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.launched_ranks import Ran, under_a_launcher
from tests.support.on_ranks import AGREEING

MODEL = (
    f"""
import time
{AGREEING}"""
    + """
def hanging():
    return agreeing(lambda: time.sleep(1000))  # here

def raising():
    def bad():
        raise ValueError("bad data")
    return agreeing(bad)
"""
)

PROGRAM = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
with torch.cuda.stream(torch.cuda.Stream()):
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for i in range(30):
    x = torch.randn(4, 4).cuda()
    optimizer.zero_grad()
    loss = ddp(x).square().mean()
    if dist.get_rank() == 1 and torch.cuda.is_current_stream_capturing():
        time.sleep(1000)  # there
    loss.backward()
    optimizer.step()
"""


def line_of(text: str, word: str) -> int:
    return next(n for n, line in enumerate(text.split("\n"), start=1) if line.endswith(f"# {word}"))


def analyzed(folder: Path, name: str, limit: str = "60s", **variables: str) -> list[Ran]:
    (folder / "model.py").write_text(MODEL)
    words = ("analyze", f"model.py:{name}", "--isolated", "--time-limit", limit)
    return under_a_launcher(folder, *words, variables=variables)


def test_a_rank_that_hangs_ends_all_within_the_limit_and_is_told_from_those_that_wait(
    tmp_path: Path,
) -> None:
    first, second = analyzed(tmp_path, "hanging", "6s")
    assert (first.returncode, first.stdout) == (3, "")
    assert "the ranks did not end within 6 s: rank 1 was at " in first.stderr
    assert (
        f"model.py:{line_of(MODEL, 'here')} (<lambda>), rank 0 waited for the others at "
        in first.stderr
    )
    assert "graphdoctor" not in first.stderr.partition("rank 0:\n")[2]
    assert second.stderr == ""


def test_a_program_whose_diagnosis_hangs_on_one_rank_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--isolated", "--strategies", "none", "--time-limit", "5s")
    first, _ = under_a_launcher(tmp_path, "run", *options, "train.py")
    assert first.returncode == 3
    assert f"rank 1 was at {tmp_path}/train.py:{line_of(PROGRAM, 'there')} " in first.stderr


def test_an_error_says_on_which_rank_it_was(tmp_path: Path) -> None:
    first, second = analyzed(tmp_path, "raising")
    assert "error: on rank 1: running the step failed: ValueError: bad data" in second.stderr
    assert "error: on rank 0: running the step failed on rank 1: ValueError" in first.stderr


def test_a_port_where_another_program_answers_does_not_keep_ranks_from_their_end(
    tmp_path: Path,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        first, second = analyzed(tmp_path, "hanging", "3s", MASTER_PORT=str(other.getsockname()[1]))
    said = first.stderr + second.stderr
    assert "the ranks did not end within 3 s: rank " in said
    assert "did not say where" in said
