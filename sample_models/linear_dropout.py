"""A training step with dropout: Linear, Dropout, Linear, Dropout, mean squared error, SGD.

Safe as a whole. A captured dropout draws a new mask at each replay, and SGD updates the
parameters in place with a rate that never changes.

Expect: verdict=safe; rules=none; mode=training
"""

from types import SimpleNamespace

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, D_IN, H, D_OUT = 640, 4096, 2048, 1024


def graphdoctor_target():
    model = nn.Sequential(
        nn.Linear(D_IN, H), nn.Dropout(p=0.2), nn.Linear(H, D_OUT), nn.Dropout(p=0.1)
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.MSELoss()

    def step(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (torch.randn(N, D_IN, device=DEVICE), torch.randn(N, D_OUT, device=DEVICE))
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})
