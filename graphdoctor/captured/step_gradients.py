"""The gradients that a step finds when it begins: whether they are part of what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_MARK = "_graphdoctor_found_by_step"
_gradient_of: Any = torch.Tensor.grad.__get__  # type: ignore[union-attr]


class Observed:
    """What one eager call did with gradients."""

    has_run_backward = False
    has_stepped = False

    def stepped(self, *_: object) -> None:
        """An optimizer has stepped; fused kernels count no writes to the weights."""
        self.has_stepped = True


class StartingGradients:
    """Which of the trained tensors have a gradient when a call begins.

    `backward()` adds to a gradient that is there and creates one that is not, so these are two graphs.
    A step that drops all gradients before it computes new ones needs one graph.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        leaves = {id(tensor): tensor for tensor in tensors if tensor.is_leaf}
        self._trained = [tensor for tensor in leaves.values() if tensor.requires_grad]
        self._are_dropped = False

    @property
    def key(self) -> tuple[bool, ...]:
        """What the calls that one graph serves have in common."""
        if self._are_dropped:
            return ()
        return tuple([gradient is None for gradient in map(_gradient_of, self._trained)])

    def now(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Each trained tensor with its gradient."""
        return [(tensor, tensor.grad) for tensor in self._trained]

    @contextmanager
    def observed(self) -> Iterator[Observed]:
        """Observe an eager call."""
        observed = Observed()
        found = [tensor for tensor in self._trained if tensor.grad is not None]
        versions = [_versions(tensor) for tensor in self._trained]
        for tensor in found:
            # A mark on the gradient, since a reference to it would keep its memory from being reused.
            setattr(tensor.grad, _MARK, True)
        hook = register_optimizer_step_post_hook(observed.stepped)
        try:
            yield observed
        finally:
            hook.remove()
        kept = [tensor for tensor in self._trained if hasattr(tensor.grad, _MARK)]
        for tensor in kept:
            delattr(tensor.grad, _MARK)
        if len(found) == len(self._trained) and not kept:
            self._are_dropped = True
        is_new = any(tensor.grad is not None for tensor in self._trained) and len(kept) < len(found)
        has_written = observed.has_stepped or versions != [_versions(t) for t in self._trained]
        observed.has_run_backward = is_new or has_written


def _versions(tensor: torch.Tensor) -> tuple[int, int]:
    """Counts the writes to a tensor and to its gradient."""
    gradient = tensor.grad
    return tensor._version, -1 if gradient is None else gradient._version
