"""Computes expensive operators once for equal inputs, and copies their results from then on.

An analysis runs a step many times, of which most start from the same state and get the same inputs: as eager,
as a capture sees it, replayed. Python and every operator run each time. But what a matrix product or a convolution
gives for the same bits in the same layout, under the same settings, is known: these kernels of the CPU are
functions of their arguments, and the proof relies on that where it compares bits. A replay that reads other
memory than eager did gets other bits, and is computed.

A result shares its memory with what is kept until somebody writes into it: torch copies it then. So nothing
is copied for what is only read, and an input that still lies in kept memory is looked at once: while the result
is known, that keeps the memory, which therefore is nobody else's, and shared, so that a write goes elsewhere.

Two calls have one key only where the kernel gets the same: the operator and its overload, the device, each
argument that is no tensor as Python writes it, the settings that kernels read, and of each tensor the shape,
the strides, the dtype and its bits, as `contents_of` tells them. A known result in its own memory and its copy
elsewhere are one: what eager hands on within the memory that it made, a region's replay is given in the region's.

Whoever has the address of memory from before it was shared could write there all the same. A result is
shared before anybody sees it; who asks a tensor for its address later, as NumPy does, parts it from all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from graphdoctor.device.observe.operators import Call, replaced, tensors_of
from graphdoctor.target.state.globals import PRECISIONS, read_precision
from graphdoctor.target.state.saved_tensor import (
    Contents,
    begin_of,
    contents_of,
    copied_when_written,
    is_shared,
    lies_on_cpu,
)

_LEAST_FLOPS = 1 << 25  # a millisecond or less: looking at the inputs would cost as much
_FLOPS_PER_BYTE = 16  # below that, looking at the inputs and copying results costs as much
_KEEPING = 4  # a byte of the result counts so often: memory for results is limited


def _product(args: tuple[Any, ...]) -> int:
    *_, one, other = args[:3]
    return 2 * int(one.numel()) * int(other.shape[-1])


def _convolution(args: tuple[Any, ...]) -> int:
    given, weight, _, stride, padding, dilation, transposed = args[:7]
    dims = given.dim() - 2
    sizes = given.shape[2:]
    if not transposed:
        stride, padding, dilation = (
            (value * dims if len(value) == 1 else value) for value in (stride, padding, dilation)
        )
        sizes = tuple(
            (sizes[d] + 2 * padding[d] - dilation[d] * (weight.shape[2 + d] - 1) - 1) // stride[d]
            + 1
            for d in range(dims)
        )
    return 2 * int(given.shape[0]) * int(weight.numel()) * int(prod(sizes))


def _convolution_backward(args: tuple[Any, ...]) -> int:
    grad, _, weight = args[:3]
    return 4 * int(grad.shape[0]) * int(weight.numel()) * int(prod(grad.shape[2:]))


def _attention(args: tuple[Any, ...]) -> int:
    query, key = args[:2]
    return 4 * int(query.numel()) * int(key.shape[-2])


def _attention_backward(args: tuple[Any, ...]) -> int:
    return 3 * _attention(args[1:])


# How many additions and multiplications a call makes, about. All are functions of their arguments.
_FLOPS: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    "aten.bmm.default": _product,
    "aten.baddbmm.default": _product,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
}


_View = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(slots=True)
class _Result:
    value: Any
    of_inputs: int  # that the step has now, or had before
    is_used: bool = False


class KnownResults:
    """Results by what they were computed from, up to `most_bytes` in all."""

    def __init__(self, most_bytes: int) -> None:
        self.is_keeping = True
        self._left_bytes = most_bytes
        self._inputs = 0
        self._results: dict[object, _Result] = {}
        self._looked_at: dict[int, dict[_View, Contents]] = {}  # kept memory, by where it begins

    def of(self, call: Call, compute: Callable[[Call], Any]) -> Any:
        """The call's result, which nobody else's writing changes."""
        if not all(map(_is_plain, call.inputs)):
            return compute(call)
        left_flops = _FLOPS[call.facts.name](call.args) - _FLOPS_PER_BYTE * _bytes_of(call.inputs)
        if left_flops < _LEAST_FLOPS:  # computing takes hardly more than a look at the inputs
            return compute(call)
        with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
            given = self._look_of(call.args), self._look_of(tuple(sorted(call.kwargs.items())))
        key = call.facts.name, call.on_cuda, *given, *_settings()
        known = self._results.get(key)
        if known is not None:
            known.is_used, known.of_inputs = True, self._inputs
            return _shared(known.value)
        result = compute(call)
        if self.is_keeping and left_flops >= _FLOPS_PER_BYTE * _KEEPING * _bytes_of(result):
            self._keep(key, result)
        return result

    def forget_unused(self) -> None:
        """Drop what was computed once only, as in a state that does not come again."""
        for key in [key for key, known in self._results.items() if not known.is_used]:
            self._forget(key)

    def prefer_new(self) -> None:
        """Drop what is known by now, and not used again, where there is no memory for what comes."""
        self._inputs += 1

    def _forget(self, key: object) -> None:
        value = self._results.pop(key).value
        self._left_bytes += _bytes_of(value)
        for tensor in tensors_of(value):
            del self._looked_at[begin_of(tensor)]

    def _make_room(self, needed: int) -> bool:
        """Whether so much can be kept; what was kept first is forgotten first."""
        if needed <= self._left_bytes:
            return True
        older = [key for key, known in self._results.items() if known.of_inputs < self._inputs]
        for key in older:
            if needed <= self._left_bytes:
                break
            self._forget(key)
        return needed <= self._left_bytes

    def _keep(self, key: object, result: Any) -> None:
        needed = _bytes_of(result)
        if not all(map(_is_alone, tensors_of(result))) or not self._make_room(needed):
            return
        self._left_bytes -= needed
        value = _shared(result)
        self._results[key] = _Result(value, self._inputs)
        self._looked_at.update((begin_of(tensor), {}) for tensor in tensors_of(value))

    def _look_of(self, value: Any) -> object:
        if isinstance(value, torch.Tensor):
            return (tuple(value.shape), value.stride(), value.dtype, self._contents_of(value))
        if isinstance(value, (list, tuple)):
            return tuple(map(self._look_of, value))
        return repr(value)

    def _contents_of(self, tensor: torch.Tensor) -> Contents:
        """What its bits are; nobody writes into kept memory, so that one look at it is enough."""
        known = self._looked_at.get(begin_of(tensor)) if is_shared(tensor) else None
        if known is None:
            return contents_of(_in_memory_order(tensor))
        view = (int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if view not in known:
            known[view] = contents_of(_in_memory_order(tensor))
        return known[view]


_ACTIVE: list[KnownResults] = []


@contextmanager
def results_known(most_bytes: int) -> Iterator[None]:
    """In this block results are kept; afterwards they are forgotten."""
    _ACTIVE.append(KnownResults(most_bytes))
    try:
        yield
    finally:
        _ACTIVE.pop()


@contextmanager
def nothing_kept() -> Iterator[None]:
    """In this block results are taken where they are known, and none is kept: its inputs do not come again."""
    known = _ACTIVE[-1] if _ACTIVE else KnownResults(0)
    before, known.is_keeping = known.is_keeping, False
    try:
        yield
    finally:
        known.is_keeping = before


def prefer_new_results() -> None:
    """From now on: other inputs come, and those from before hardly again."""
    if _ACTIVE:
        _ACTIVE[-1].prefer_new()


def forget_unused_results() -> None:
    if _ACTIVE:
        _ACTIVE[-1].forget_unused()


def known_or_computed(call: Call, compute: Callable[[Call], Any]) -> Any:
    """The call's result, from what is known where it would take long to compute."""
    if not _ACTIVE or call.facts.name not in _FLOPS:
        return compute(call)
    return _ACTIVE[-1].of(call, compute)


def _settings() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch._C._get_mkldnn_enabled(),
        torch.get_float32_matmul_precision()
        if not PRECISIONS
        else (read_precision(("mkldnn", "matmul")), read_precision(("mkldnn", "conv"))),
        torch._C._get_deterministic_algorithms(),
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    is_real = tensor.is_floating_point() and not tensor.is_neg()
    return is_real and lies_on_cpu(tensor) and tensor.layout is torch.strided


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as they lie in memory, where it fills that; else as they are numbered."""
    if tensor.is_contiguous() or not _is_dense(tensor):
        return tensor.contiguous().reshape(-1)
    return tensor.as_strided((tensor.numel(),), (1,))


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether it fills its memory, which nobody has but torch."""
    return _is_dense(tensor) and tensor.untyped_storage().nbytes() == tensor.nbytes


def _shared(result: Any) -> Any:
    """The same in memory that is copied as soon as somebody writes into it."""
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        return replaced(result, torch.Tensor, copied_when_written)


def _bytes_of(result: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(result))
