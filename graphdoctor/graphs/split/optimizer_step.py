"""Capture the step of an optimizer as a separate graph, if no Python value that it reads can change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


def why_not_captured(optimizer: torch.optim.Optimizer) -> str:
    """Why its step stays eager, in a few words; "" where a graph can stand for it.

    Only torch's own optimizers, whose Python does the same in each step as long as their state is
    on the device and their numbers stay as they are (`Frozen` looks at those before each replay).
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return "its class is not one of torch's"
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        return "it is not capturable"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable"
    if any(_hooks_of(optimizer)):
        return "it has hooks"
    if not all(
        value is None or (isinstance(value, torch.Tensor) and value.is_cuda)
        for value in _state_of(optimizer)
    ):
        return "it keeps state on the host"
    return ""


def has_number_as_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scheduler has to change a Python number, which a graph keeps as it was."""
    return any(not isinstance(group.get("lr"), torch.Tensor) for group in optimizer.param_groups)


def _hooks_of(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        yield getattr(optimizer, name, None)
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        yield getattr(sys.modules["torch.optim.optimizer"], name, None)


def _state_of(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """The state of each parameter, and the options that are tensors."""
    for state in optimizer.state.values():
        yield from state.values()
    for group in optimizer.param_groups:
        yield from (value for value in group.values() if isinstance(value, torch.Tensor))


class Frozen:
    """The options of an optimizer that its graph keeps as they were."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._options = [
            (group, name, value)
            for group in optimizer.param_groups
            for name, value in group.items()
            if name not in ("params", "initial_lr")
        ]

    def still_hold(self) -> bool:
        """Numbers must be equal; a tensor must be the same one, whatever its value is now."""
        return all(
            (found := group.get(name)) is value
            or (
                not isinstance(value, torch.Tensor)
                and not isinstance(found, torch.Tensor)
                and bool(found == value)
            )
            for group, name, value in self._options
        )


class OptimizerStep:
    """An optimizer's step: a replay where there is a graph that still holds, else the step itself."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: Callable[..., object]) -> None:
        self.optimizer = optimizer
        self.graph: Any = None
        self._step = step
        self._frozen: Frozen | None = None

    def take(self, graph: Any) -> None:
        """Replay this graph from now on; it was captured with the optimizer's options of now."""
        self.graph = graph
        self._frozen = Frozen(self.optimizer)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._frozen is not None and not args and not kwargs and self._frozen.still_hold():
            self.graph.replay()
            return None
        return self._step(*args, **kwargs)
