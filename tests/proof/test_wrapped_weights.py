"""Weights that are a subclass wrapping other tensors, as quantization makes them, are compared by their parts."""

from __future__ import annotations

import torch
from torch import nn

import graphdoctor

_ALLOWED = ("detach", "linear", "t", "addmm", "mm")


class Quantized(torch.Tensor):
    """An int8 weight with a scale, which knows no operators but those of a linear layer."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=scale.dtype, device=data.device
        )

    def __init__(self, data, scale):
        self.data8, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, meta, size, stride):
        return cls(parts["data8"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in _ALLOWED:
            raise NotImplementedError(f"a quantized weight has no {name}")
        if name == "detach":
            return cls(args[0].data8.detach(), args[0].scale.detach())
        plain = [a.data8.to(a.scale.dtype) * a.scale if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))


def quantized(*, moving: bool) -> nn.Module:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            data = torch.randint(-8, 8, (4, 4), dtype=torch.int8, device="cuda")
            scale = torch.rand(4, 1, device="cuda")
            self.weight = nn.Parameter(Quantized(data, scale), requires_grad=False)
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            if moving:
                self.weight.scale.mul_(1 + self.steps)
            return x.mm(self.weight.t())

    return Layer().eval()


def analyzed(*, moving: bool) -> graphdoctor.Report:
    return graphdoctor.analyze(
        lambda: (quantized(moving=moving), (torch.randn(8, 4, device="cuda"),)),
        device="emulated",
        strategies=(),
    )


def test_a_step_with_such_weights_is_verified() -> None:
    assert analyzed(moving=False).verdict == "safe"


def test_a_replay_that_leaves_another_part_behind_is_wrong() -> None:
    report = analyzed(moving=True)
    assert {finding.rule for finding in report.findings} == {"GD203"}
    assert report.verdict != "safe"
