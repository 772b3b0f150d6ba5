"""GD117: gradients that reach what ran before the step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

GRADIENTS = Variants()

INSIDE = "Compute the tensor inside the step"
DETACHED = "pass tensor.detach() to the step"


def layer(out: int = 4) -> nn.Linear:
    made = nn.Linear(4, out, device="cuda")
    nn.init.constant_(made.weight, 0.5)
    nn.init.zeros_(made.bias)
    return made


def headed(*, inside: bool = False, detached: bool = False) -> object:
    """A head on the features of a backbone that is trained along."""
    backbone, head, image = layer(), layer(2), torch.ones(8, 4, device="cuda")
    kept = None if inside else backbone(image)
    if detached:
        kept = kept.detach()

    def step(x):
        head.zero_grad()
        backbone.zero_grad()
        features = backbone(image) if kept is None else kept
        loss = (head(features) * x).sum()
        loss.backward(retain_graph=True)
        return loss.detach(), head.weight.grad

    return step, (cuda(8, 2),)


@GRADIENTS.before("GD117", INSIDE)
def features_from_before() -> object:
    return headed()


@GRADIENTS.after
def features_in_the_step() -> object:
    return headed(inside=True)


@GRADIENTS.before("GD117", DETACHED)
def features_of_a_backbone_left_alone() -> object:
    return headed()


@GRADIENTS.after
def features_detached() -> object:
    return headed(detached=True)


class Positions(nn.Module):
    """A table that a parameter scales, made in the constructor or in each call."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, device="cuda"))
        self.register_buffer("places", torch.arange(32.0, device="cuda").view(8, 4))
        self.table = self.places * self.scale if once else None

    def forward(self, x):
        return x + (self.places * self.scale if self.table is None else self.table)


def positioned(*, once: bool) -> object:
    positions = Positions(once=once)

    def step(x):
        positions.zero_grad()
        loss = positions(x).square().mean()
        loss.backward(retain_graph=once)
        return loss.detach(), positions.scale.grad

    return step, (cuda(8, 4),)


@GRADIENTS.before("GD117", INSIDE)
def table_of_the_constructor() -> object:
    return positioned(once=True)


@GRADIENTS.after
def table_of_the_call() -> object:
    return positioned(once=False)


def compared(*, inside: bool) -> object:
    """Samples against the prototypes of their classes, which a head holds."""
    head = layer(3)
    kept = None if inside else F.normalize(head.weight, dim=1)

    def step(x):
        head.zero_grad()
        prototypes = F.normalize(head.weight, dim=1) if kept is None else kept
        loss = (F.normalize(x, dim=1) @ prototypes.T).logsumexp(1).mean()
        loss.backward(retain_graph=True)
        return loss.detach(), head.weight.grad

    return step, (cuda(8, 4),)


@GRADIENTS.before("GD117", INSIDE)
def prototypes_from_before() -> object:
    return compared(inside=False)


@GRADIENTS.after
def prototypes_in_the_step() -> object:
    return compared(inside=True)


def carried(*, detaches: bool) -> object:
    """A recurrent state that reaches from one window of a sequence into the next."""
    cell = layer()
    state = {"h": torch.zeros(8, 4, device="cuda")}

    def step(x):
        cell.zero_grad()
        h = torch.tanh(x + cell(state["h"]))
        loss = h.square().mean()
        loss.backward(retain_graph=not detaches)
        if detaches:
            state["h"].copy_(h.detach())
        else:
            state["h"] = h
        return loss.detach()

    return step, (cuda(8, 4),)


@GRADIENTS.before("GD117", DETACHED)
def state_carried_with_its_graph() -> object:
    return carried(detaches=False)


@GRADIENTS.after
def state_carried_detached() -> object:
    return carried(detaches=True)
