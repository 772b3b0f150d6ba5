"""Whether the program records gradients now, to run a step later as it would run now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


def gradient_mode() -> Callable[[], AbstractContextManager[Any]]:
    """What puts a block into the mode of the caller: inference mode, no gradients, or gradients.

    `torch.inference_mode(False)` is none of them, since it turns gradients on.
    """
    if torch.is_inference_mode_enabled():
        return torch.inference_mode
    return torch.enable_grad if torch.is_grad_enabled() else torch.no_grad
