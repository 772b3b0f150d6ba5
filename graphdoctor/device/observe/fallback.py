"""An operator call -> its result on the CPU; where the CPU lacks the kernel, the nearest thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphdoctor.device.observe.operators import Call, written_tensors
from graphdoctor.values.errors import CannotDoItHere

_NARROW = (torch.float16, torch.bfloat16)
_COUNTS = frozenset({"histc"})
_NO_KERNEL = (
    "not implemented for",
    "not implemented on the CPU",
    "could not create a primitive",
    "Expected both self and other to be nested",  # on the CPU, of a nested and a dense tensor
)
# On a GPU they take a wide gradient for a narrow input; on the CPU they refuse.
_MIXED_ON_CUDA = frozenset({"_softmax_backward_data", "_log_softmax_backward_data"})


class EmulationLimit(CannotDoItHere):
    """An operator that cannot be emulated: no kernel on the CPU, and no shape function."""


def run_operator(call: Call) -> Any:
    """Run the call; `call.fallback` says why its result may differ from a GPU's."""
    try:
        if not call.facts.is_aten:  # its implementation may be Python, which names devices
            return call.func(*call.args, **call.kwargs)
        with torch._C.DisableTorchFunction():
            return call.func(*call.args, **call.kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if not call.on_cuda or not _lacks_kernel(call, error):
            raise
        return _run_otherwise(call, error)


def _lacks_kernel(call: Call, error: Exception) -> bool:
    """Whether the CPU fails where a GPU would not."""
    if isinstance(error, NotImplementedError) or call.facts.base_name in _MIXED_ON_CUDA:
        return True
    return any(map(str(error).__contains__, _NO_KERNEL))


def _run_otherwise(call: Call, error: Exception) -> Any:
    why = _first_line(str(error))
    if call.facts.base_name in _COUNTS:
        return _count_in_double(call)
    if any(tensor.dtype in _NARROW for tensor in call.inputs):
        try:
            result = _run_wider(call)
        except (NotImplementedError, RuntimeError):
            pass  # not in float32 either
        else:
            call.fallback = f"{call.facts.name} ran in float32: {why}"
            return result
    try:
        result = _shape_only(call)
    except Exception:  # whatever a shape function raises
        raise EmulationLimit(
            f"The emulated CUDA device cannot run {call.facts.name}: {why}"
        ) from error
    call.fallback = f"{call.facts.name} returned zeros of the right shape: {why}"
    return result


def _run_wider(call: Call) -> Any:
    """Run in float32 and round back: the values are close to a GPU's, not bit for bit the same."""
    narrow = next(t.dtype for t in call.inputs if t.dtype in _NARROW)
    wide_of: dict[int, torch.Tensor] = {}

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in _NARROW:
            return tensor
        return wide_of.setdefault(id(tensor), tensor.float())

    args, kwargs = _each_tensor(call.args, widen), _each_tensor(call.kwargs, widen)
    if kwargs.get("dtype") in _NARROW:
        kwargs["dtype"] = torch.float32
    result = call.func(*args, **kwargs)
    originals: dict[int, torch.Tensor] = {}
    for tensor in written_tensors(call.facts, call.args, call.kwargs):
        if id(tensor) in wide_of:
            wide = wide_of[id(tensor)]
            originals[id(wide)] = tensor.copy_(wide)

    def narrowed(tensor: torch.Tensor) -> torch.Tensor:
        original = originals.get(id(tensor))
        if original is not None:
            return original
        return tensor.to(narrow) if tensor.dtype == torch.float32 else tensor

    return _each_tensor(result, narrowed)


def _count_in_double(call: Call) -> Any:
    """Counting gives whole numbers in any dtype: the result is a GPU's, exactly."""
    dtype = call.inputs[0].dtype
    args = _each_tensor(call.args, torch.Tensor.double)
    return call.func(*args, **call.kwargs).to(dtype)


def _shape_only(call: Call) -> Any:
    """Ask the operator's shape function; new results are zeros, and written arguments stay."""
    originals: dict[int, torch.Tensor] = {}
    metas: dict[int, torch.Tensor] = {}

    def shape_of(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in metas:
            meta = metas[id(tensor)] = tensor.to("meta")
            originals[id(meta)] = tensor
        return metas[id(tensor)]

    def zeros(meta: torch.Tensor) -> torch.Tensor:
        original = originals.get(id(meta))
        if original is not None:
            return original
        strided = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu")
        return strided.zero_()

    with torch._C.DisableTorchFunction():
        kwargs = _each_tensor(call.kwargs, shape_of)
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        return _each_tensor(call.func(*_each_tensor(call.args, shape_of), **kwargs), zeros)


def _each_tensor(value: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure, with every tensor in it replaced."""
    if isinstance(value, torch.Tensor):
        return make(value)
    if isinstance(value, dict):
        return {name: _each_tensor(item, make) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each_tensor(item, make) for item in value)
    return value


def _first_line(text: str) -> str:
    """A reason in one sentence: torch adds advice, and a list of all its backends."""
    lines = text.strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else "no kernel"
