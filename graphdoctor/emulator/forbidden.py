"""An operator call or a host event -> why a CUDA graph capture would refuse it, or None."""

from __future__ import annotations

import torch

from graphdoctor.emulator.dispatch import Call
from graphdoctor.emulator.storages import StorageTable

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_RNG_STATE = (
    "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If you need this call to "
    "be captured, please file an issue."
)

# Operators that read the device from the host inside, without another operator to show for it.
# Source: ATen's CUDA kernels call item() or copy sizes to the host in each of these.
_SYNCS_INSIDE = frozenset(
    {
        "equal", "is_nonzero", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim",
        "unique_consecutive", "unique_dim_consecutive", "bincount", "multinomial",
        "_linalg_check_errors", "repeat_interleave",
    }
)  # fmt: skip


def refusal_of_call(call: Call, table: StorageTable) -> str | None:
    """Why the driver, or torch, would refuse this operator during a capture."""
    name = call.facts.base_name
    if name in ("_to_copy", "copy_"):
        return _refusal_of_copy(call, table)
    if not call.on_cuda:
        return None
    if name == "_local_scalar_dense" or name in _SYNCS_INSIDE:
        return _because(call, "the host waits for a value of the device")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        return _refusal_of_index(call, table)
    return None


def _refusal_of_copy(call: Call, table: StorageTable) -> str | None:
    source = call.args[0] if call.facts.base_name == "_to_copy" else call.args[1]
    to_cuda = call.on_cuda if call.facts.base_name == "_to_copy" else table.is_cuda(call.args[0])
    from_cuda = table.is_cuda(source)
    if from_cuda == to_cuda or source.numel() == 0:
        return None
    position = 2 if call.facts.base_name == "copy_" else None
    non_blocking = bool(
        call.kwargs.get("non_blocking", position is not None and len(call.args) > 2 and call.args[2])
    )
    if non_blocking:
        return None
    way = "host to device" if to_cuda else "device to host"
    return _because(call, f"a blocking copy from {way}")


def _refusal_of_index(call: Call, table: StorageTable) -> str | None:
    indices = [item for item in call.args[1] if isinstance(item, torch.Tensor)]
    if any(item.dtype in (torch.bool, torch.uint8) for item in indices):
        return _because(call, "a mask index needs its number of elements on the host")
    if any(not table.is_cuda(item) for item in indices):
        return _because(call, "an index on the host is copied to the device")
    values = call.args[2] if call.facts.base_name != "index" and len(call.args) > 2 else None
    if isinstance(values, torch.Tensor) and not table.is_cuda(values):
        return _because(call, "a value on the host is copied to the device")
    return None


def refusal_of_event(kind: str, name: str) -> str | None:
    """Why a capture would refuse what the host called."""
    if kind in ("sync", "query", "pinned-allocation"):
        return f"{CAPTURING} ({name})"
    if kind == "rng-state":
        return _RNG_STATE
    return None


def _because(call: Call, reason: str) -> str:
    return f"{CAPTURING} ({call.facts.name}: {reason})"
