"""Calls on the host that a capture refuses, as both devices tell observers of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.values.host_events import HostEvent, RefusedOptimizer, RngState, TensorRepr

RNG_CALLS = (
    "get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all", "manual_seed",
    "manual_seed_all", "seed", "seed_all", "initial_seed",
)  # fmt: skip
_TORCH_RANDOM = torch.random.__file__
_SEED_ALL = frozenset({"manual_seed", "seed"})
_NOT_IN_CAPTURE = (
    "Cannot call CUDAGeneratorImpl::{} during CUDA graph capture. If you need this call to be "
    "captured, please file an issue."
)
_OTHER_SEED = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is "
    "the same as the original seed."
)


def rng_event(
    name: str,
    method: str,
    argument: Any,
    *,
    current_seed: Callable[[], int],
    seed_of: Callable[[torch.Tensor], int],
) -> RngState:
    """The event of a call by that name, with what torch says to it in a capture.

    `argument` is the seed or the state that the call sets. torch captures a call that leaves the
    seed as it is, since only the offset of a captured generator lives on the device.
    """
    seed = int(argument) % 2**64 if method in ("manual_seed", "manual_seed_all") else None
    refusal = _refusal_of_rng_call(method, argument, current_seed, seed_of)
    return RngState(name, refusal=refusal, seed=seed)


def _refusal_of_rng_call(
    method: str,
    argument: Any,
    current_seed: Callable[[], int],
    seed_of: Callable[[torch.Tensor], int],
) -> str:
    if method in ("seed", "seed_all"):
        return _NOT_IN_CAPTURE.format("seed")
    sets = method in ("set_rng_state", "set_rng_state_all", "manual_seed", "manual_seed_all")
    if not captures_rng_state():
        return _NOT_IN_CAPTURE.format("set_current_seed" if sets else "current_seed")
    if not sets:
        return ""
    states = argument[:1] if isinstance(argument, (list, tuple)) else [argument]
    wanted = [seed_of(x) if isinstance(x, torch.Tensor) else int(x) for x in states]
    same = all(seed % 2**64 == current_seed() % 2**64 for seed in wanted)
    return "" if same else _OTHER_SEED


def rng_call_name(method: str, caller: FrameType | None) -> str:
    """The call as its author wrote it: torch.manual_seed() calls torch.cuda's function for all devices."""
    name = f"torch.cuda.{method}()"
    while caller is not None and caller.f_code.co_filename == _TORCH_RANDOM:
        if caller.f_code.co_name in _SEED_ALL:
            name = f"torch.{caller.f_code.co_name}()"
        caller = caller.f_back
    return name


class Tells(Protocol):
    """What a stand-in needs of a device: where storages lie, and somebody to tell."""

    table: StorageTable
    assumes_capture: bool

    def event(self, event: HostEvent) -> None: ...


def answer_as_captured(patches: Patches, tell: Callable[[], object] = lambda: None) -> None:
    """Let code that asks a real device whether it is being captured believe it, while nothing is.

    `tell` is called each time that somebody asks.
    """

    def is_capturing() -> bool:
        tell()
        return True

    for module in (torch.cuda, torch.cuda.graphs):
        patches.set(module, "is_current_stream_capturing", is_capturing)
    patches.set(torch._C, "_cuda_isCurrentStreamCapturing", is_capturing)


def note_refused_optimizers(device: Tells, patches: Patches) -> None:
    """Note optimizers that torch refuses to capture, in a recording that only assumes a capture."""
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        patches.replace(
            torch.optim.Optimizer, name, lambda original: _health_check(device, original)
        )


def telling_repr(device: Tells, original: Callable[..., str]) -> Callable[..., str]:
    """repr, str and print of a tensor copy it to the host, with the modes switched off by torch."""

    def tensor_str(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if not device.table.is_cuda(self):
            return original(self, tensor_contents=tensor_contents)
        device.event(TensorRepr("repr(tensor)"))
        return original(self, tensor_contents=tensor_contents)

    return tensor_str


def _health_check(device: Tells, original: Callable[..., None]) -> Callable[..., None]:
    """torch refuses optimizers that are not capturable; a recording notes it and goes on."""

    def check(self: torch.optim.Optimizer) -> None:
        if not device.assumes_capture:
            original(self)
        elif not all(group.get("capturable", False) for group in self.param_groups):
            name = type(self).__name__
            device.event(RefusedOptimizer(f"{name}.step()", class_name=name))

    return check


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


# pytorch/pytorch#162505, in 2.10 (ROCm/pytorch#2843 says so); measured to be captured with 2.11.0.
_RNG_STATE_IS_CAPTURED = (2, 10)
# pytorch/pytorch#172156, made after 2.10 was cut; measured to be refused with 2.11.0.
_PAGEABLE_COPY_IS_REFUSED = (2, 11)


def torch_version() -> tuple[int, int]:
    """Major and minor version of the torch that runs."""
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def captures_rng_state() -> bool:
    """Whether a capture may read the generator's state, and set it without another seed."""
    return torch_version() >= _RNG_STATE_IS_CAPTURED


def refuses_pageable_copies() -> bool:
    """Whether torch refuses to capture any copy from or to memory that is not pinned.

    Before it did, one with `non_blocking=True` was captured, and its replays read or wrote whatever
    then lay at the address.
    """
    return torch_version() >= _PAGEABLE_COPY_IS_REFUSED
