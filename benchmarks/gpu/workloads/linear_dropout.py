"""The training step of PyTorch's notes on CUDA graphs: Linear, Dropout, Linear, Dropout, MSE, SGD."""

from types import SimpleNamespace

import torch
from torch import nn

D_IN, HIDDEN, D_OUT = 4096, 2048, 1024


def graphdoctor_target(batch_size: int = 32):
    model = nn.Sequential(
        nn.Linear(D_IN, HIDDEN), nn.Dropout(p=0.2), nn.Linear(HIDDEN, D_OUT), nn.Dropout(p=0.1)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.MSELoss()

    def step(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (
        torch.randn(batch_size, D_IN, device="cuda"),
        torch.randn(batch_size, D_OUT, device="cuda"),
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})
