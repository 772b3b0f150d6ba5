"""What DDP and `fully_shard` hold for a module is state; what only a global holds is not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from graphdoctor.values.recording import External, Recording
from tests.support.diagnosing import recorded


def on_the_device(recording: Recording) -> list[External]:
    return [one for one in recording.captured[-1].externals if one.device.startswith("cuda")]


def ddp():
    dist.init_process_group("nccl")
    with torch.cuda.stream(torch.cuda.Stream()):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())

    def step(x):
        model.zero_grad()
        model(x).sum().backward()

    return step, (torch.ones(2, 4, device="cuda"),)


def sharded():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    model = fully_shard(torch.nn.Linear(4, 4).cuda())

    def step(x):
        model.zero_grad()
        model(x).sum().backward()

    return step, (torch.ones(2, 4, device="cuda"),)


class Keeps(torch.autograd.Function):
    """Its backward pass adds the gradient to a tensor that nothing leads to."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        vars(torch.cuda)["_kept"].add_(grad)
        return grad


def ddp_beside_a_kept_tensor():
    step, inputs = ddp()
    vars(torch.cuda)["_kept"] = torch.zeros(2, 4, device="cuda")

    def both(x):
        Keeps.apply(x.clone().requires_grad_()).sum().backward()
        step(x)

    return both, inputs


def test_buckets_of_ddp_are_held_by_its_reducer() -> None:
    found = on_the_device(recorded(ddp))
    assert "unknown" not in {one.origin for one in found}
    assert "model.reducer" in {one.name for one in found}


@pytest.mark.filterwarnings("error:Accessing the data pointer of FakeTensor")
def test_gathered_parameters_are_held_by_their_module() -> None:
    found = on_the_device(recorded(sharded))
    assert "unknown" not in {one.origin for one in found}
    assert "model, gathered" in {one.name for one in found}


def test_a_tensor_that_nothing_leads_to_is_unknown_beside_ddp_as_well() -> None:
    try:
        found = on_the_device(recorded(ddp_beside_a_kept_tensor))
    finally:
        del vars(torch.cuda)["_kept"]
    assert [one.origin for one in found].count("unknown") == 1
