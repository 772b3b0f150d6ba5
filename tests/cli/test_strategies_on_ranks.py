"""`graphdoctor analyze --ranks N --strategies ...`: each is built and verified on all ranks, or on none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.on_ranks import analyzed

MODEL = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def scheduled():
    dist.init_process_group("nccl")
    with torch.cuda.stream(torch.cuda.Stream()):
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).cuda())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda done: 1.0 + done % 3)
    me = dist.get_rank()

    def step(x):
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        sgd.step()
        schedule.step()
        return loss

    def as_one_rank_captures(x):
        if me == 1 and torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return step(x)

    return (as_one_rank_captures if "ONE" in os.environ else step), (torch.randn(2, 4, device="cuda"),)
"""


def rows(folder: Path, *arguments: str) -> dict[str, dict[str, str]]:
    ran = analyzed(folder, MODEL, "scheduled", *arguments, "--json", "report.json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads((folder / "report.json").read_text())
    return {one["strategy"]: one for one in report["strategies"]}


def test_a_backward_pass_with_its_all_reduce_is_split_off_on_all_ranks(tmp_path: Path) -> None:
    found = rows(tmp_path, "--strategies", "whole,split-step,modules")
    assert {name: one["status"] for name, one in found.items()} == {
        "whole": "wrong", "split-step": "verified", "modules": "verified",
    }  # fmt: skip
    assert "range(11)" in found["split-step"]["code"]  # DDP times itself in ten
    assert "model.module = " in found["modules"]["code"]


def test_what_one_rank_cannot_capture_no_rank_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE", "1")
    found = rows(tmp_path, "--strategies", "whole,split-step")
    assert {one["status"] for one in found.values()} <= {"refused", "unfit"}
    assert {one["code"] for one in found.values()} == {""}
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "unsafe"
    assert "GD108" in {found["rule"] for found in report["findings"]}
