"""`graphdoctor analyze` and `run` as each rank of a launcher: one page, of what all of them found."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from graphdoctor.cli import main
from tests.support import warm
from tests.support.launched_ranks import started_by_hand, under_a_launcher

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


def analyzed(folder: Path, name: str, *options: str) -> list[str]:
    (folder / "model.py").write_text(MODEL)
    ranks = under_a_launcher(folder, "analyze", f"model.py:{name}", "--isolated", *options)
    return [rank.stdout for rank in ranks]


def test_ranks_replay_a_collective_in_step_and_rank_0_prints_for_all(tmp_path: Path) -> None:
    first, second = analyzed(tmp_path, "whole", "--all")
    assert second == ""
    assert first.startswith("SAFE")
    assert "On all 2 ranks: " in first
    assert "equal to eager (bitwise)" in first


def test_a_hazard_of_one_rank_is_a_hazard_of_the_step_and_says_whose(tmp_path: Path) -> None:
    first, _ = analyzed(tmp_path, "one_waits")
    assert first.startswith("UNSAFE")
    assert "GD108" in first
    assert "On rank 1 only: " in first


PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for i in range(9):
    x = torch.randn(4, 4).cuda()
    optimizer.zero_grad()
    loss = ddp(x).square().mean()
    loss.backward()
    optimizer.step()
total = loss.detach()
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {total.item():.6f}")
dist.destroy_process_group()
"""


def test_an_unmodified_program_is_diagnosed_on_all_ranks_and_goes_on(tmp_path: Path) -> None:
    """By torchrun, whose processes have a store that outlives the program's own group."""
    (tmp_path / "train.py").write_text(PROGRAM)
    launcher = warm.command("torch.distributed.run", "--nproc-per-node", "2")
    address = ["--standalone", "--no-python"]  # it chooses the port and keeps it
    options = ["--isolated", "--steps", "2", "--strategies", "none", "--to-the-end"]
    command = [*launcher, *address, *warm.command(warm.CLI, "run", *options)]
    done = subprocess.run(
        [*command, "--json", "report.json", "train.py"], cwd=tmp_path, capture_output=True,
        text=True, timeout=100, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    totals = dict(re.findall(r"rank (\d): (\d+\.\d{6})", done.stdout))  # ranks share a pipe
    assert set(totals) == {"0", "1"} and totals["0"] == totals["1"]
    assert done.stderr.count("1 step: 1 UNSAFE. The program ran to its end") == 1
    assert done.stderr.count("note: step 1: the same verdict on all 2 ranks") == 1
    joined, *each = (
        json.loads((tmp_path / f"report{name}.json").read_text())
        for name in ("", ".rank0", ".rank1")
    )
    (step,) = joined["steps"]
    assert len(step["report"]["ranks"]) == 2
    assert {found["rule"] for found in step["report"]["findings"]} >= {"GD121"}
    assert [one["steps"][0]["report"]["verdict"] for one in each] == ["unsafe", "unsafe"]


def test_a_program_whose_ranks_were_started_by_hand_is_joined_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ["--isolated", "--steps", "2", "--strategies", "none", "--to-the-end"]
    ranks = started_by_hand(tmp_path, "run", *options, "--json", "report.json", "train.py")
    first, second = (rank.stdout.partition(": ")[2] for rank in ranks)
    assert first == second != ""
    (step,) = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert [each["rank"] for each in step["report"]["ranks"]] == [0, 1]


def test_ranks_that_have_no_address_to_meet_at_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", "--isolated", "--json", "report.json", "empty.py"]) == 0
    assert "This is rank 1 alone" in (said := capsys.readouterr().err)
    assert "MASTER_ADDR and MASTER_PORT do not say where they meet" in " ".join(said.split())
    assert [file.name for file in tmp_path.glob("*.json")] == ["report.rank1.json"]
