"""A model and inputs -> its forward and backward pass as graphs, as a whole or in parts, or why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from graphdoctor.captured.parts import Parts, graph_parts
from graphdoctor.captured.study import Study, alone, known_from, safe_modules, target_of
from graphdoctor.device.emulated import EmulationLimit
from graphdoctor.device.open import AnyDevice
from graphdoctor.graphs.guards import Modes
from graphdoctor.pipeline import Setting, put_back, stages
from graphdoctor.target import Inputs, Target
from graphdoctor.target.state.tree import leaves, map_leaves


def study_training(
    model: torch.nn.Module, inputs: Inputs, device: AnyDevice, context: Modes
) -> tuple[Study, Parts | str]:
    """Record a forward and a backward pass, and graph what is safe in them.

    The loss is the sum of all outputs that want gradients; the caller's own comes in its place.
    """
    try:
        with alone(), put_back(target := _with_backward(target_of(model, inputs), model)):
            return _study(model, target, device, context)
    except EmulationLimit as limit:
        return Study((str(limit),)), str(limit)


def _study(
    model: torch.nn.Module, target: Target, device: AnyDevice, context: Modes
) -> tuple[Study, Parts | str]:
    studied = stages.study(target, Setting(device))
    known = known_from(studied)
    wanted = safe_modules(studied) if known.obstacles else {"": model}
    return known, graph_parts(studied.session, wanted, known.launches, context=context)


def _with_backward(target: Target, model: torch.nn.Module) -> Target:
    return replace(target, mode="training", step=_forward_and_backward(model))


def _forward_and_backward(model: torch.nn.Module) -> Callable[..., object]:
    def step(*args: object, **kwargs: object) -> object:
        model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            outputs = model(*args, **kwargs)
            wanting = [leaf for leaf in leaves(outputs, "output").values() if _wants_gradient(leaf)]
            if wanting:
                torch.autograd.backward([leaf.float().sum() for leaf in wanting])  # type: ignore[attr-defined]
        return map_leaves(_detached, outputs)

    return step


def _wants_gradient(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()


def _detached(leaf: object) -> object:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
