"""SGD with a learning-rate schedule that is stepped inside the step.

It captures without a complaint, and trains on at the rate of the step that was captured: the
rate is a Python number, which the graph holds as a constant.

Expect: verdict=partly-safe; rules=GD204; mode=training
"""

from types import SimpleNamespace

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def graphdoctor_target():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    loss_function = nn.CrossEntropyLoss()

    def step(data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(data), label)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return SimpleNamespace(
        step=step,
        inputs=(torch.randn(32, 64, device=DEVICE), torch.randint(10, (32,), device=DEVICE)),
        state={"model": model, "optimizer": optimizer, "scheduler": scheduler},
    )
