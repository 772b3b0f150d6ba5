"""The state that torch is in -> whether a call happens where a replay would not be understood."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

_saving_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_transforms: Any = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None
)
_tracing: Any = getattr(torch._C, "_get_tracing_state", lambda: None)


def unusual_context() -> bool:
    """Activation checkpointing, other hooks on saved tensors, vmap, forward gradients, a trace.

    A graph saves no tensors that such hooks could see, and knows of no transforms.
    """
    return (
        (_saving_hooks is not None and _saving_hooks(True) is not None)
        or _transforms() is not None
        or forward_ad._current_level >= 0
        or _tracing() is not None
    )
