"""`python -m tests.support.captured_under_ddp` as one of two ranks: do a captured module's gradients equal eager's?

In two ways, a line each: "before" is DistributedDataParallel of the captured module; "inside", the module is
captured in its place in it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def main() -> int:
    with EmulatedDevice():
        dist.init_process_group("nccl")
        for way in ("before", "inside"):
            tell(way)
    return 0


def tell(way: str) -> None:
    torch.manual_seed(0)
    net = Net().cuda()
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(8, 16, device="cuda")
    expected = gradients(parallel(copy.deepcopy(net)), x)
    alone = gradients(copy.deepcopy(net), x)
    model, captured = under_ddp(net, x, way)
    found = gradients(model, x)
    is_equal = all(map(torch.equal, found, expected))
    is_reduced = not any(map(torch.equal, found, alone))
    how = " ".join(captured.explain().split())
    print(f"{way}: equal={is_equal} reduced={is_reduced} {how}")


def under_ddp(net: torch.nn.Module, x: torch.Tensor, way: str) -> tuple[torch.nn.Module, Any]:
    if way == "before":
        captured = graphdoctor.capture(net, x, mode="training")
        return parallel(captured), captured
    model = parallel(net)
    captured = graphdoctor.capture(net, x, mode="training")
    model.module = captured
    return model, captured


def parallel(module: torch.nn.Module) -> DistributedDataParallel:
    with torch.cuda.stream(torch.cuda.Stream()):
        return DistributedDataParallel(module)


def gradients(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of three steps, each on other data."""
    found = []
    for step in range(3):
        model.zero_grad()
        model(x + step).square().mean().backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found
