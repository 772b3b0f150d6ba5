"""torch.ctc_loss with lengths in host memory -> the call that torch makes of it where nobody watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphdoctor.device.observe.patches import Patches

_NAMES = ("input_lengths", "target_lengths")
_FIRST = 2  # their position, after log_probs and targets


def stand_in_for_ctc_loss(patches: Patches) -> None:
    """Lengths on the host go on as numbers.

    torch does so by itself, but for tensors with code of their own, which it takes all tensors for while a
    dispatch mode is active. Then it divides a loss on the GPU by lengths on the CPU, and fails. Source:
    ctc_loss in aten/src/ATen/native/LossCTC.cpp.
    """
    patches.replace(torch, "ctc_loss", _by_numbers)


def _by_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    def ctc_loss(*args: Any, **kwargs: Any) -> Any:
        lengths = args[_FIRST:][: len(_NAMES)] + tuple(kwargs.get(name) for name in _NAMES)
        if any(isinstance(one, torch.Tensor) and one.is_cuda for one in lengths):
            return original(*args, **kwargs)
        args = (*args[:_FIRST], *map(_numbers, args[_FIRST:]))
        for name in _NAMES:
            if name in kwargs:
                kwargs[name] = _numbers(kwargs[name])
        return original(*args, **kwargs)

    return ctc_loss


def _numbers(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value
