"""A training step that reads a sum on the host to choose between two modules.

`.item()` waits for the device, so the step cannot be captured as a whole, and the branch that
follows is taken anew each time. Each of the three modules by itself is safe.

Expect: verdict=partly-safe; rules=GD107; mode=training
"""

from itertools import cycle
from types import SimpleNamespace

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, D_IN, H, D_OUT = 64, 256, 128, 64

signs = cycle((1.0, -1.0))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module1 = nn.Linear(D_IN, H)
        self.module2 = nn.Linear(H, D_OUT)
        self.module3 = nn.Linear(H, D_OUT)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        tmp = self.module1(data)
        if tmp.sum().item() > 0:
            return self.module2(tmp)
        return self.module3(tmp)


def get_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Batches of opposite sign in turn, so that the step takes both branches."""
    data = next(signs) * torch.rand(N, D_IN, device=DEVICE)
    return data, torch.randn(N, D_OUT, device=DEVICE)


def graphdoctor_target():
    torch.manual_seed(0)
    model = Branching().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.MSELoss()

    def step(data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return SimpleNamespace(
        step=step, inputs=get_inputs, state={"model": model, "optimizer": optimizer}
    )
