"""The autograd node behind a graphed call: outputs become the caller's, and a backward pass is announced."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable


class Ticket(Protocol):
    """One forward pass of a graph, which one backward pass may follow."""

    def redeem(self, came: tuple[bool, ...]) -> None:
        """Called before the backward graph runs, with the outputs for which a gradient came.

        Raises RuntimeError where the graph would not give the right gradients.
        """
        ...


class Returned(torch.autograd.Function):
    """Outputs, copied out of the graph's memory or not; the backward pass asks the ticket first."""

    @staticmethod
    def forward(
        ctx: Any,
        ticket: Ticket,
        differentiable: tuple[bool, ...],
        copies: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.ticket = ticket
        ctx.set_materialize_grads(False)
        made = tuple(tensor.clone() if copies else tensor.detach() for tensor in tensors)
        ctx.mark_non_differentiable(
            *(tensor for tensor, wanted in zip(made, differentiable, strict=True) if not wanted)
        )
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.ticket.redeem(tuple(gradient is not None for gradient in gradients))
        return (None, None, None, *gradients)
