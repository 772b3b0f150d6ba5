"""The same step with a learning rate that a graph reads anew each time."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(data), label)
    loss.backward()
    optimizer.step()
    return loss.detach()


class graphdoctor_step:
    pass


def graphdoctor_target():
    target = graphdoctor_step()
    target.step = step
    target.inputs = (torch.randn(8, 16).cuda(), torch.randn(8, 4).cuda())
    target.state = {"model": model, "optimizer": optimizer}
    return target
