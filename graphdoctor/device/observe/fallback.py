"""An operator call -> its result on the CPU; where the CPU lacks the kernel, the nearest thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from graphdoctor.device.observe.collectives import (
    begin_transfer,
    finish_transfers,
    is_transfer,
)
from graphdoctor.device.observe.known_results import known_or_computed
from graphdoctor.device.observe.operators import Call, replaced, tensors_of
from graphdoctor.device.observe.wider import NARROW, is_slow_when_narrow, run_wider
from graphdoctor.target.state.saved_tensor import give_own_memory
from graphdoctor.values.errors import CannotDoItHere

_COPIES_AMONG_THREADS = "in the loop function of at::parallel_for is forbidden"
_COUNTS = frozenset({"histc"})
_RESIZES = frozenset({"resize_", "resize_as_", "_resize_output_"})
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
        if is_transfer(call.facts):
            work = call.func(*call.args, **call.kwargs)
            begin_transfer(work)
            return work
        finish_transfers()
        if call.facts.is_collective:
            return _run_on_all_ranks(call)
        if not call.facts.is_aten:  # its implementation may be Python, which names devices
            return call.func(*call.args, **call.kwargs)
        with torch._C.DisableTorchFunction():
            return known_or_computed(call, _computed)
    except (NotImplementedError, RuntimeError) as error:
        lacks_kernel = (
            isinstance(error, NotImplementedError)
            or call.facts.base_name in _MIXED_ON_CUDA
            or any(map(str(error).__contains__, _NO_KERNEL))
        )
        if not call.on_cuda or not lacks_kernel:
            raise
        return _run_otherwise(call, error)


def _computed(call: Call) -> Any:
    for tensor in _may_resize(call):
        give_own_memory(tensor)
    if is_slow_when_narrow(call):
        with torch._C._DisableAutocast():
            return run_wider(call)
    return _called(call)


def _called(call: Call) -> Any:
    """Some kernels ask for their inputs' memory among their threads, where torch lets none of them copy it."""
    try:
        return call.func(*call.args, **call.kwargs)
    except RuntimeError as error:
        facts = call.facts
        may_not_run_again = facts.written_args or facts.written_kwargs or facts.is_random
        if may_not_run_again or _COPIES_AMONG_THREADS not in str(error):
            raise
    for tensor in call.inputs:
        give_own_memory(tensor)
    return call.func(*call.args, **call.kwargs)


def _may_resize(call: Call) -> Iterator[torch.Tensor]:
    """The tensors that a call may give another size: what is resized, and results that the caller gives."""
    if call.facts.base_name in _RESIZES:
        yield from tensors_of(call.args[:1])
    if call.kwargs:
        for name in call.facts.written_kwargs:
            yield from tensors_of(call.kwargs.get(name))


def _run_on_all_ranks(call: Call) -> Any:
    """Run a collective and wait for it: on the device, whatever uses its result comes after."""
    try:
        result = call.func(*call.args, **call.kwargs)
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, torch.ScriptObject):
                torch._C._distributed_c10d.Work.unbox(part).wait()
            elif isinstance(part, torch.Tensor):
                torch.ops._c10d_functional.wait_tensor(part)  # nothing, where nothing was begun
    except RuntimeError as error:
        raise EmulationLimit(
            f"{call.facts.name} failed on rank {torch.distributed.get_rank()}, since another rank ended,"
            f" came too late, or called something else: {_first_line(str(error))}"
        ) from error
    return result


def _run_otherwise(call: Call, error: Exception) -> Any:
    why = _first_line(str(error))
    if call.facts.base_name in _COUNTS:
        dtype = call.inputs[0].dtype  # in any, counting gives whole numbers: the result is a GPU's
        args = replaced(call.args, torch.Tensor, torch.Tensor.double)
        return call.func(*args, **call.kwargs).to(dtype)
    if any(tensor.dtype in NARROW for tensor in call.inputs):
        try:
            result = run_wider(call)
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
        kwargs = replaced(call.kwargs, torch.Tensor, shape_of)
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        return replaced(
            call.func(*replaced(call.args, torch.Tensor, shape_of), **kwargs), torch.Tensor, zeros
        )


def _first_line(text: str) -> str:
    """A reason in one sentence: torch adds advice, and a list of all its backends."""
    lines = text.strip().splitlines()
    return lines[0].partition(". ")[0].rstrip(".") if lines else "no kernel"
