"""Training with Adam as everyone writes it, and in the form that a CUDA graph can hold.

Plain Adam counts its steps on the host and computes the bias correction there; PyTorch refuses
to capture it. `capturable` counts on the device, and a learning rate in a tensor can be changed
between replays.

Expect: verdict=partly-safe; rules=GD111; mode=training
Expect[capturable]: verdict=safe; rules=none; mode=training
"""

from types import SimpleNamespace

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(DEVICE)


def training_with(model: nn.Module, optimizer: torch.optim.Optimizer) -> SimpleNamespace:
    loss_function = nn.CrossEntropyLoss()

    def step(data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(data), label)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (torch.randn(32, 64, device=DEVICE), torch.randint(10, (32,), device=DEVICE))
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})


def graphdoctor_target():
    model = network()
    return training_with(model, torch.optim.Adam(model.parameters(), lr=1e-3))


def capturable():
    model = network()
    rate = torch.tensor(1e-3, device=DEVICE)
    return training_with(model, torch.optim.Adam(model.parameters(), lr=rate, capturable=True))
