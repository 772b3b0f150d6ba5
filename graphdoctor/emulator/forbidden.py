"""An operator call or a host event -> why a CUDA graph capture would refuse it, or None."""

from __future__ import annotations

import torch

from graphdoctor.emulator.dispatch import Call
from graphdoctor.emulator.storages import StorageTable
from graphdoctor.rules._hidden_syncs import HIDDEN_SYNCS, Seen, hidden_sync

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_RNG_STATE = (
    "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If you need this call "
    "to be captured, please file an issue."
)

# Operators that read a value, or the size of their result, from the device.
# Source: ATen's CUDA kernels call item() or copy sizes to the host in each of these.
_READS = frozenset(
    {
        "_local_scalar_dense", "equal", "allclose", "is_nonzero", "nonzero", "masked_select",
        "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
        "bincount",
    }
)  # fmt: skip


def refusal_of_call(call: Call, table: StorageTable) -> str | None:
    """Why the driver, or torch, would refuse this operator during a capture."""
    name = call.facts.base_name
    if name in ("_to_copy", "copy_"):
        return _refusal_of_copy(call, table)
    if not call.on_cuda:
        return None
    if name in _READS or (name == "repeat_interleave" and call.kwargs.get("output_size") is None):
        return _because(call, "the host waits for a value of the device")
    if name in HIDDEN_SYNCS:
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in call.inputs]
        waits = hidden_sync(Seen(call.facts.name, call.args, call.kwargs, dtypes))
        if waits is not None:
            return _because(call, f"it {waits.why}")
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
        call.kwargs.get(
            "non_blocking", position is not None and len(call.args) > 2 and call.args[2]
        )
    )
    if non_blocking:
        return None
    way = "host to device" if to_cuda else "device to host"
    return _because(call, f"a blocking copy from {way}")


def _refusal_of_index(call: Call, table: StorageTable) -> str | None:
    indices = [item for item in call.args[1] if isinstance(item, torch.Tensor)]
    if _is_masked_fill(call, table, indices):
        return None
    if any(item.dtype in (torch.bool, torch.uint8) for item in indices):
        return _because(call, "a mask index needs its number of elements on the host")
    if any(not table.is_cuda(item) for item in indices):
        return _because(call, "an index on the host is copied to the device")
    values = call.args[2] if call.facts.base_name != "index" and len(call.args) > 2 else None
    if isinstance(values, torch.Tensor) and not table.is_cuda(values):
        return _because(call, "a value on the host is copied to the device")
    return None


def _is_masked_fill(call: Call, table: StorageTable, indices: list[torch.Tensor]) -> bool:
    """One mask and a single value on the host: ATen makes it masked_fill, which reads nothing.

    Source: TensorAdvancedIndexing.cpp, canDispatchToMaskedFill.
    """
    if call.facts.base_name in ("index", "_unsafe_index") or len(call.args) < 3:
        return False
    value, accumulate = call.args[2], len(call.args) > 3 and call.args[3]
    one_mask = len(indices) == 1 and indices[0].dtype in (torch.bool, torch.uint8)
    return one_mask and not accumulate and value.numel() == 1 and not table.is_cuda(value)


def refusal_of_event(kind: str, name: str) -> str | None:
    """Why a capture would refuse what the host called."""
    if kind in ("sync", "query", "pinned-allocation", "tensor-repr", "graph-replay"):
        return f"{CAPTURING} ({name})"
    if kind == "rng-state":
        return _RNG_STATE
    return None


def _because(call: Call, reason: str) -> str:
    return f"{CAPTURING} ({call.facts.name}: {reason})"
