"""A tensor of constants that a method builds in each step -> a buffer of the module."""

from __future__ import annotations

import torch

from tests.support.diagnosing import diagnosed


class Shifted(torch.nn.Module):
    def forward(self, x):
        shift = torch.tensor([1.0, 2.0], device=x.device)
        return x + shift


class ShiftedInline(torch.nn.Module):
    def forward(self, x):
        return x + torch.FloatTensor([1.0, 2.0]).to(x.device)


class ShiftedOnce(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("constant", torch.FloatTensor([1.0, 2.0]), persistent=False)

    def forward(self, x):
        return x + self.constant


def code_for(module: type[torch.nn.Module]) -> tuple[str, ...]:
    (found,) = diagnosed(lambda: (module().cuda(), (torch.randn(4, 2, device="cuda"),))).findings
    return tuple(line.partition("  # ")[0] for line in found.fix_code)


def test_a_tensor_of_constants_becomes_a_buffer() -> None:
    assert code_for(Shifted) == (
        'self.register_buffer("shift", torch.tensor([1.0, 2.0]), persistent=False)',
        "shift = self.shift",
    )
    assert code_for(ShiftedInline) == (
        'self.register_buffer("constant", torch.FloatTensor([1.0, 2.0]), persistent=False)',
        "return x + self.constant",
    )
    assert not diagnosed(
        lambda: (ShiftedOnce().cuda(), (torch.randn(4, 2, device="cuda"),))
    ).findings
