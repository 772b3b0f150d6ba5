"""An operator call or a host event -> why a CUDA graph capture would refuse it, or None."""

from __future__ import annotations

from typing import Any

import torch

from graphdoctor.emulator.dispatch import Call
from graphdoctor.emulator.storages import StorageTable
from graphdoctor.operators import fact_about, load_table
from graphdoctor.recording import Arg, Op, Opaque, TensorUse

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_RNG_STATE = (
    "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If you need this call "
    "to be captured, please file an issue."
)


def refusal_of_call(call: Call, table: StorageTable) -> str | None:
    """Why the driver, or torch, would refuse this operator during a capture."""
    name = call.facts.base_name
    if name in ("_to_copy", "copy_"):
        return _refusal_of_copy(call, table)
    if not call.on_cuda or name not in load_table().hazards:
        return None
    fact = fact_about(_recorded(call, table))
    return _because(call, f"it {fact.why}") if fact is not None else None


def _recorded(call: Call, table: StorageTable) -> Op:
    """The call as a recording has it, as far as a condition may look."""
    kwargs = tuple((name, _plain(value, table)) for name, value in call.kwargs.items())
    return Op(
        index=0, name=call.facts.name, args=tuple(_plain(arg, table) for arg in call.args),
        kwargs=kwargs, outputs=(), writes=(), tags=(), phase="forward", module="", device="cuda:0",
    )  # fmt: skip


def _plain(value: Any, table: StorageTable) -> Arg:
    if isinstance(value, torch.Tensor):
        return TensorUse(
            storage=0, shape=tuple(value.shape), stride=(), offset=0, itemsize=0,
            dtype=str(value.dtype).removeprefix("torch."),
            device="cuda:0" if table.is_cuda(value) else "cpu",
        )  # fmt: skip
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item, table) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return Opaque(str(value))


def _refusal_of_copy(call: Call, table: StorageTable) -> str | None:
    source = call.args[0] if call.facts.base_name == "_to_copy" else call.args[1]
    to_cuda = call.on_cuda if call.facts.base_name == "_to_copy" else table.is_cuda(call.args[0])
    from_cuda = table.is_cuda(source)
    if from_cuda == to_cuda or source.numel() == 0:
        return None
    position = 2 if call.facts.base_name == "copy_" else None
    non_blocking = bool(
        call.kwargs.get(
            "non_blocking", position is not None and len(call.args) > 2 and call.args[2]
        )
    )
    if non_blocking:
        return None
    way = "host to device" if to_cuda else "device to host"
    return _because(call, f"a blocking copy from {way}")


def refusal_of_event(kind: str, name: str) -> str | None:
    """Why a capture would refuse what the host called."""
    if kind in ("sync", "query", "pinned-allocation", "tensor-repr", "graph-replay"):
        return f"{CAPTURING} ({name})"
    if kind == "rng-state":
        return _RNG_STATE
    return None


def _because(call: Call, reason: str) -> str:
    return f"{CAPTURING} ({call.facts.name}: {reason})"
