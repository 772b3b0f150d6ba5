"""What the steps of this folder are made with."""

from __future__ import annotations

from types import SimpleNamespace

import torch


def data(*shape):
    return torch.randn(*(shape or (4, 8)), device="cuda")


def steps_of(step, *state, inputs=None):
    """A step, its inputs and the objects whose state it uses, as a target."""
    return SimpleNamespace(step=step, inputs=inputs or (data(),), state=list(state))
