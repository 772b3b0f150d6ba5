"""Every module of torch.nn, as PyTorch's own tests make it and call it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from op_db import allow_missing_expecttest
from zoo import Built, Case, Inputs, built

allow_missing_expecttest()
# The tests' package forbids to set torch.backends' flags for the rest of the process, which models do.
with mock.patch("torch.backends.disable_global_flags"):
    from torch.testing._internal.common_modules import ModuleInfo, module_db


class Called(torch.nn.Module):
    """A module with all of its arguments under two names."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.module(*args, **kwargs)


def cases() -> Iterator[Case]:
    for info in module_db:
        name = info.module_cls.__name__
        if name.startswith("Lazy"):
            continue  # its parameters come with the first call; it is the other module then
        yield Case(info.name, "nn", "module", name, partial(build, info))


def build(info: ModuleInfo) -> Built:
    """The first of the tests' calls."""
    made = calls(info, seed=0)[0].constructor_input
    module = Called(info.module_cls(*made.args, **made.kwargs))

    def fresh() -> Inputs:
        seed = int(torch.randint(1 << 30, ()))
        given = calls(info, seed=seed)[0].forward_input
        return {"args": tuple(given.args), "kwargs": dict(given.kwargs)}

    return built(module, fresh)


def calls(info: ModuleInfo, *, seed: int) -> list[Any]:
    """The tests' calls of a module: the same ones each time, with other values for another seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return list(
            info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
            )
        )
