"""An operator call or a host event -> why a CUDA graph capture would refuse it, or None."""

from __future__ import annotations

from typing import Any

import torch

from graphdoctor.device.observe.operators import Call
from graphdoctor.device.observe.storages import StorageTable, arg_of, use_of
from graphdoctor.device.observe.versions import refuses_pageable_copies
from graphdoctor.operators import fact_about, load_table
from graphdoctor.operators.table import WAITING_NODES
from graphdoctor.values.host_events import HostEvent, MayBeRefused
from graphdoctor.values.recording import Op, TensorUse

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_PAGEABLE = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def refusal_of_call(call: Call, table: StorageTable) -> str | None:
    """Why the driver, or torch, would refuse this operator during a capture."""
    name = call.facts.base_name
    node = torch._C._current_autograd_node()
    if node is not None and node.name() in WAITING_NODES and any(t.dim() for t in call.inputs):
        return f"{CAPTURING} ({node.name()}: it looks for zeros on the host)"
    if name in ("_to_copy", "copy_"):
        return _refusal_of_copy(call, table)
    if not call.on_cuda or name not in load_table().hazards:
        return None
    fact = fact_about(_recorded(call, table))
    return _because(call, f"it {fact.why}") if fact is not None else None


def _recorded(call: Call, table: StorageTable) -> Op:
    """The call as a recording has it, as far as a condition may look."""

    def use(tensor: torch.Tensor) -> TensorUse:
        info = table.info(tensor)
        return use_of(tensor, info, "cuda:0" if info.cuda else "cpu")

    kwargs = tuple((name, arg_of(value, use)) for name, value in call.kwargs.items())
    return Op(
        index=0, name=call.facts.name, args=tuple(arg_of(arg, use) for arg in call.args),
        kwargs=kwargs, outputs=(), writes=(), tags=(), phase="forward", module="", device="cuda:0",
    )  # fmt: skip


def _refusal_of_copy(call: Call, table: StorageTable) -> str | None:
    """Into memory of the host that the call makes itself, torch copies pinned and unblocked alike."""
    into_new = call.facts.base_name == "_to_copy"
    source = call.args[0 if into_new else 1]
    to_cuda = call.on_cuda if into_new else table.is_cuda(call.args[0])
    if table.is_cuda(source) == to_cuda or source.numel() == 0:
        return None
    if str(call.kwargs.get("device")) == "meta" or call.args[0].is_meta:  # nothing is copied
        return None
    if into_new:
        non_blocking = call.kwargs.get("non_blocking")
        pinned = table.is_pinned(source) if to_cuda else non_blocking
    else:
        non_blocking = argument_of(call, 2, "non_blocking")
        pinned = table.is_pinned(source if to_cuda else call.args[0])
    if not pinned and refuses_pageable_copies():
        return f"{_PAGEABLE} ({call.facts.name})"
    if non_blocking:
        return None
    way = "host to device" if to_cuda else "device to host"
    return _because(call, f"a blocking copy from {way}")


def argument_of(call: Call, place: int, name: str) -> Any:
    """An argument by its place, or by its name; None where it is not given."""
    return call.args[place] if len(call.args) > place else call.kwargs.get(name)


def refusal_of_event(event: HostEvent) -> str | None:
    """The error of a capture for what the host called; None if a capture allows it."""
    if event.is_refused:
        return f"{CAPTURING} ({event.name})"
    return event.refusal or None if isinstance(event, MayBeRefused) else None


def _because(call: Call, reason: str) -> str:
    return f"{CAPTURING} ({call.facts.name}: {reason})"
