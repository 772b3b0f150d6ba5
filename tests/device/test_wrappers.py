"""Tensors that are not what they seem: wrappers that tell nobody, freed storages, buffers without a shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

import graphdoctor


class Wrapped(torch.Tensor):
    """Holds a tensor, and has no `__tensor_flatten__`."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Wrapped) else t, (args, kwargs))
        result = func(*args, **(kwargs or {}))
        return tree_map(lambda t: Wrapped(t) if isinstance(t, torch.Tensor) else t, result)


class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def made_in_step() -> tuple[Any, ...]:
    linear = nn.Linear(8, 8).cuda()
    return lambda x: (Wrapped(x) * 2 + 1).inner + linear(x), torch.randn(4, 8)


def as_parameter() -> tuple[Any, ...]:
    weight = nn.Parameter(Wrapped(torch.randn(8, 8, device="cuda")), requires_grad=False)
    return lambda x: F.linear(x, weight).inner + 1, torch.randn(4, 8)  # type: ignore[attr-defined]


def as_output() -> tuple[Any, ...]:
    return lambda x: Wrapped(x) * 2, torch.randn(4, 8)


def subclass_with_code() -> tuple[Any, ...]:
    linear = nn.Linear(8, 8).cuda()
    return lambda x: F.relu(linear(x)) + 1, torch.randn(4, 8).as_subclass(Counting)


def freed_storage() -> tuple[Any, ...]:
    weight = torch.randn(8, 8, device="cuda")
    shard = weight.clone()

    def step(x: torch.Tensor) -> torch.Tensor:
        weight.untyped_storage().resize_(weight.numel() * 4)
        weight.copy_(shard)
        y = x @ weight
        weight.untyped_storage().resize_(0)
        return y

    return step, torch.randn(4, 8)


def lazy_buffers() -> tuple[Any, ...]:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d()).cuda().eval()
    return model, torch.randn(4, 8)


STEPS = [made_in_step, as_parameter, as_output, subclass_with_code, freed_storage, lazy_buffers]


@pytest.mark.parametrize("build", STEPS)
def test_tensors_that_are_not_what_they_seem_are_diagnosed(
    build: Callable[[], tuple[Any, ...]],
) -> None:
    def target() -> tuple[Any, ...]:
        step, *inputs = build()
        return step, tuple(each.cuda() for each in inputs)

    report = graphdoctor.analyze(target, device="emulated", strategies=())
    assert report.verdict == "safe" and report.operators


def test_a_wait_inside_a_wrapper_is_found() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * (Wrapped(x) * 2).inner.sum().item()

    report = graphdoctor.analyze(step, torch.randn(4, 8), device="emulated", strategies=())
    assert [found.rule for found in report.findings][:1] == ["GD101"]
