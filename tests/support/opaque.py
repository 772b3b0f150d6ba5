"""A tensor that wraps another, says of no flattening which, and takes part in hardly any operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class Opaque(torch.Tensor):
    """It has a storage without memory; views of it are refused by a TypeError."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: type[Opaque], inner: torch.Tensor) -> Opaque:
        made: Opaque = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return Opaque(args[0].inner)
        return NotImplemented
