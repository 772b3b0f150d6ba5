"""`python -m tests.support.captured_under_ddp` as one of two ranks: do a captured module's gradients equal eager's?

In two ways, a line each: "before" is DistributedDataParallel of the captured module; "inside", the module is
captured in its place in it. A third line is of a whole step that is captured.
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
        tell_of_step()
    return 0


def tell_of_step() -> None:
    """Do captured training steps leave eager's weights, on all ranks?"""
    torch.manual_seed(0)
    net = Net().cuda()
    torch.manual_seed(1 + dist.get_rank())
    batches = [torch.randn(8, 16, device="cuda") for _ in range(24)]
    expected, _ = trained(copy.deepcopy(net), batches, lambda step: step)
    found, captured = trained(net, batches, graphdoctor.capture)
    # The fused optimizer of a captured step rounds otherwise.
    off = max((one - other).abs().max().item() for one, other in zip(found, expected, strict=True))
    of_others = [torch.empty_like(found[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(of_others, found[0])
    is_shared = all(torch.equal(each, found[0]) for each in of_others)
    how = " ".join(captured.explain().split())
    print(f"step: equal={off < 1e-6} shared={is_shared} {how}")


def trained(
    net: torch.nn.Module, batches: list[torch.Tensor], wrap: Any
) -> tuple[list[torch.Tensor], Any]:
    model = parallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = wrap(train_step)
    for batch in batches:
        step(batch)
    return [parameter.detach() for parameter in model.parameters()], step


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
