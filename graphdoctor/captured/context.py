"""torch's modes and switches as they are now -> whether they are what a graph was captured under."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from graphdoctor.captured.machine import emulated_device

# What a forward pass may look at, or kernels are chosen by; each a name and where it is asked for.
# What this torch lacks is left out.
_SWITCHES: tuple[tuple[str, Callable[[], Callable[[], object]]], ...] = (
    ("autocast", lambda: partial(torch.is_autocast_enabled, "cuda")),
    ("autocast's dtype", lambda: partial(torch.get_autocast_dtype, "cuda")),
    ("the default dtype", lambda: torch.get_default_dtype),
    ("deterministic algorithms", lambda: torch._C._get_deterministic_algorithms),
    ("the current device", lambda: _of_cuda("current_device", "_cuda_getDevice")),
    ("the precision of matrix products", lambda: torch._C._get_float32_matmul_precision),
    ("cudnn.enabled", lambda: torch._C._get_cudnn_enabled),
    ("cudnn.benchmark", lambda: torch._C._get_cudnn_benchmark),
    ("cudnn.deterministic", lambda: torch._C._get_cudnn_deterministic),
    ("flash attention", lambda: torch._C._get_flash_sdp_enabled),
    ("memory-efficient attention", lambda: torch._C._get_mem_efficient_sdp_enabled),
    ("plain attention", lambda: torch._C._get_math_sdp_enabled),
    ("the number of dispatch modes", lambda: torch._C._len_torch_dispatch_stack),
    ("the number of function modes", lambda: torch._C._len_torch_function_stack),
    ("torch.func", lambda: torch._C._functorch.maybe_current_level),
    ("tracing", lambda: torch._C._get_tracing_state),
    (
        "a capture of the caller's",
        lambda: _of_cuda("is_current_stream_capturing", "_cuda_isCurrentStreamCapturing"),
    ),
)
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed asks for more)
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class Context:
    """What was set while a graph was captured. Gradients are not among it: callers choose by them."""

    def __init__(self) -> None:
        found = list(_available())
        self._names = [name for name, _ in found]
        self._asked = [ask for _, ask in found]
        self._hooks: list[Any] = [getattr(module_hooks, name) for name in _GLOBAL_HOOKS]
        self._before = [ask() for ask in self._asked]

    def is_same(self) -> bool:
        return list(map(_call, self._asked)) == self._before and not any(self._hooks)

    def difference(self) -> str:
        """What is set otherwise, in one sentence; "" where nothing is."""
        if any(self._hooks):
            return "a hook for all modules is registered, which a replay would not run"
        for name, ask, before in zip(self._names, self._asked, self._before, strict=True):
            if (now := ask()) != before:
                return f"{name} changed from {before} to {now}"
        return ""


def _of_cuda(name: str, in_c: str) -> Callable[[], object]:
    """torch.cuda's function, or what it asks in C, which spares two calls in Python."""
    found = getattr(torch._C, in_c, None) if emulated_device() is None else None
    return found if found is not None else getattr(torch.cuda, name)  # type: ignore[no-any-return]


def _available() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, find in _SWITCHES:
        try:
            ask = find()
            ask()
        except (AttributeError, RuntimeError, AssertionError):
            continue
        yield name, ask
