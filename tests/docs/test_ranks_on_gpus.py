"""What docs/ranks.md says of NCCL's settings, on two GPUs, with PyTorch alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TRAINING = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
side = torch.cuda.Stream()
x = torch.randn(8, 64, device="cuda") * (rank + 1)
torch.cuda.synchronize()

with torch.cuda.stream(side):
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())

    def step():
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()

    for _ in range(11):
        step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    step()
x.copy_(torch.randn_like(x))
graph.replay()
torch.cuda.synchronize()
replayed = model.module.weight.grad.clone()
torch.cuda.synchronize()  # the next step zeroes the gradient on another stream than the copy's
with torch.cuda.stream(side):
    step()
torch.cuda.synchronize()
torch.testing.assert_close(replayed, model.module.weight.grad)
del graph
dist.destroy_process_group()
print("as eager", flush=True)
"""
SETTINGS = (
    {},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
    {"NCCL_GRAPH_REGISTER": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
)


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: ", ".join(setting) or "as it is")
def test_a_step_of_ddp_is_captured_and_its_group_destroyed_under_each_setting(
    tmp_path: Path, setting: dict[str, str]
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    (tmp_path / "train.py").write_text(TRAINING)
    ran = subprocess.run(
        [
            sys.executable,
            *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        ],
        cwd=tmp_path,
        env={**os.environ, "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1", **setting},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr[
        :6000
    ]  # what a rank says comes before what torchrun does
    assert ran.stdout.count("as eager") == 2
