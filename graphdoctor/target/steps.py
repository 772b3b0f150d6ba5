"""A module -> the step to analyse when the user gave none: its forward, or a training one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphdoctor.target.state.tree import leaves
from graphdoctor.values.errors import UsageError

LEARNING_RATE = 0.01
INFERENCE_NOTE = "the step is the module's forward under torch.no_grad()"
TRAINING_NOTE = (
    "no training step was given, so one was made: loss = sum of all floating outputs, "
    f"optimizer = SGD(lr={LEARNING_RATE})"
)


def inference_step(model: torch.nn.Module) -> Callable[..., object]:
    """The module's forward, without gradients."""

    def step(*args: object, **kwargs: object) -> object:
        with torch.no_grad():
            return model(*args, **kwargs)

    return step


def optimizer_for(model: torch.nn.Module) -> torch.optim.Optimizer:
    """SGD over what can be trained; a module with nothing to train is a `UsageError`."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError(
            f"{type(model).__name__} has no parameter that requires a gradient, so it cannot be "
            f"trained; use --mode inference"
        )
    return torch.optim.SGD(trained, lr=LEARNING_RATE)


def training_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[..., object]:
    """Forward, the sum of all floating outputs as the loss, backward, optimizer step."""

    def step(*args: object, **kwargs: object) -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss_of(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _loss_of(output: object) -> torch.Tensor:
    terms = [
        leaf.float().sum()
        for leaf in leaves(output, "output").values()
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad
    ]
    if not terms:
        raise UsageError(
            "the module has no floating output with a gradient to train on; use --mode inference, "
            "or describe the training step with graphdoctor_target()"
        )
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term
    return loss
