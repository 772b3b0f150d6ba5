"""An operator call -> its result on the CPU, in a wider dtype where the CPU has no kernel for the one asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from graphdoctor.emulator.dispatch import Call

_NARROW = (torch.float16, torch.bfloat16)
_EXACT_IN_FLOAT = frozenset({"histc"})
_NO_KERNEL = "not implemented for"


class EmulationLimit(NotImplementedError):
    """An operator that the emulated device cannot run at all: no kernel on the CPU."""


def run_operator(call: Call) -> Any:
    """Run the call; `call.fallback` says so if another dtype had to stand in for the one asked for."""
    try:
        return call.func(*call.args, **call.kwargs)
    except NotImplementedError as error:
        if not call.on_cuda:
            raise
        text = str(error)
        if _NO_KERNEL in text:
            return _run_wider(call, error)
        raise EmulationLimit(
            f"the emulated CUDA device cannot run {call.facts.name}: {_first_line(text)}"
        ) from error
    except RuntimeError as error:
        if call.on_cuda and _NO_KERNEL in str(error):
            return _run_wider(call, error)
        raise


def _run_wider(call: Call, error: Exception) -> Any:
    """Run in float32 and round back: the values are close to a GPU's, not bit for bit the same."""
    if call.facts.base_name in _EXACT_IN_FLOAT:
        return _run_integers_in_float(call)
    if not any(tensor.dtype in _NARROW for tensor in call.inputs):
        raise EmulationLimit(
            f"the emulated CUDA device cannot run {call.facts.name}: {_first_line(str(error))}"
        ) from error
    call.fallback = f"{call.facts.name} ran in float32: {_first_line(str(error))}"
    narrow = next(t.dtype for t in call.inputs if t.dtype in _NARROW)
    wide_of: dict[int, torch.Tensor] = {}
    args = tuple(_widen(value, wide_of) for value in call.args)
    kwargs = {name: _widen(value, wide_of) for name, value in call.kwargs.items()}
    if kwargs.get("dtype") in _NARROW:
        kwargs["dtype"] = torch.float32
    result = call.func(*args, **kwargs)
    originals: dict[int, torch.Tensor] = {}
    for tensor in written_tensors(call.facts, call.args, call.kwargs):
        if id(tensor) in wide_of:
            wide = wide_of[id(tensor)]
            originals[id(wide)] = tensor.copy_(wide)
    return _narrow(result, originals, narrow)


def _run_integers_in_float(call: Call) -> Any:
    """Counting gives whole numbers in any dtype: the result is a GPU's, exactly."""
    dtype = call.inputs[0].dtype
    args = tuple(a.double() if isinstance(a, torch.Tensor) else a for a in call.args)
    return call.func(*args, **call.kwargs).to(dtype)


def _widen(value: Any, wide_of: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype not in _NARROW:
            return value
        return wide_of.setdefault(id(value), value.float())
    if isinstance(value, (list, tuple)):
        return type(value)(_widen(item, wide_of) for item in value)
    return value


def _narrow(result: Any, originals: dict[int, torch.Tensor], dtype: torch.dtype) -> Any:
    if isinstance(result, torch.Tensor):
        original = originals.get(id(result))
        if original is not None:
            return original
        return result.to(dtype) if result.dtype == torch.float32 else result
    if isinstance(result, (list, tuple)):
        return type(result)(_narrow(item, originals, dtype) for item in result)
    return result


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no kernel"


