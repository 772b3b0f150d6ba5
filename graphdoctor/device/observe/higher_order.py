"""torch.cond() and its kind -> the operators that they run, each seen as any other."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator

from graphdoctor.device.observe.fallback import EmulationLimit

_OF_DTENSORS = "run_dtensor_rng_op"  # has a kernel for CUDA alone
_KEYS = (DispatchKey.CompositeExplicitAutograd, DispatchKey.CPU)


def in_parts(func: HigherOrderOperator) -> Callable[..., Any]:
    """What such an operator runs in eager mode: the functions that it was given, as its values decide.

    Raises EmulationLimit for one that has no such kernel.
    """
    if func.name() == _OF_DTENSORS and not torch.cuda.is_current_stream_capturing():
        return _drawing_as_dtensors_do
    kernel = next((func.py_kernels[key] for key in _KEYS if key in func.py_kernels), None)
    if kernel is None:
        raise EmulationLimit(f"torch has no code to run {func.name()} operator by operator")
    if not isinstance(kernel, FunctionType):
        return kernel
    # Some check that no mode is on, since compilers should not come here; what they run is to be seen.
    seen = {**kernel.__globals__, "_get_current_dispatch_mode": lambda: None}
    copy = FunctionType(
        kernel.__code__, seen, kernel.__name__, kernel.__defaults__, kernel.__closure__
    )
    copy.__kwdefaults__ = kernel.__kwdefaults__
    return copy


def _drawing_as_dtensors_do(start: int, end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    """A random operator on this rank's part of a DTensor: it draws numbers of its own.

    On a GPU the generator is moved to this part's place first, on the host. What replays draw then is not known.
    """
    return op(*args, **kwargs)
