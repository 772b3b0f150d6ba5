"""A loss that is scaled by a factor counted up on the host.

It captures without a complaint, and replays the factor of the step that was captured: a Python
number becomes a constant of the kernel, and the counter itself does not run at a replay.

Expect: verdict=partly-safe; rules=GD203; mode=training
"""

from types import SimpleNamespace

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class WarmingLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        scale = min(1.0, self.steps / 100)
        return nn.functional.mse_loss(output, target) * scale


def graphdoctor_target():
    layers = (nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 16))
    model = nn.Sequential(*layers).to(DEVICE)
    warming_loss = WarmingLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = warming_loss(model(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return SimpleNamespace(
        step=step,
        inputs=(torch.randn(32, 64, device=DEVICE), torch.randn(32, 16, device=DEVICE)),
        state={"model": model, "optimizer": optimizer, "loss": warming_loss},
    )
