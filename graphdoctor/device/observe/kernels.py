"""An operator -> the Python that a GPU runs for it, too; or why it is unknown what its kernel does there."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphdoctor.device.observe.operators import OperatorFacts
from graphdoctor.target.state.saved_tensor import PARTS_OF_SPARSE

# What is PyTorch's own: op_db and its source say what their kernels do in a capture.
_PYTORCHS = (
    "aten", "prims", "prim", "inductor", "rngprims", "debugprims",
    "c10d", "_c10d_functional", "_c10d_functional_autograd",
)  # fmt: skip
# Most of these have no kernel for CUDA, and a build for the CPU cannot tell which do.
_FOR_CPUS = ("quantized.", "_quantized.", "mkldnn.", "onednn.")


def python_body(func: Any, facts: OperatorFacts) -> Callable[..., Any] | None:
    """The function that `torch.library.custom_op` made an operator of, where it is for all devices.

    None where a GPU would run something else: a kernel that was registered for CUDA alone.
    Also what `fully_shard` made operators of: their schemas do not say what they write.
    """
    if facts.name.startswith("fsdp."):
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        if facts.base_name == "chunk_cat_mixed_dtype":
            return _chunk_cat_mixed_dtype
        forms = ("{}_cuda", "{}", "_{}_default")
        found = (getattr(_fsdp_collectives, each.format(facts.base_name), None) for each in forms)
        return next((body for body in found if body is not None and _fits(body, func)), None)
    if _is_pytorchs(facts):
        return None
    from torch._library import custom_ops

    known = getattr(custom_ops, "OPDEFS", {})  # torch 2.4 and newer
    kernels = getattr(known.get(func._name), "_backend_fns", {})
    if kernels:
        # Their first call imports it, and with torch 2.6 that import reads tensors: here no mode sees it.
        importlib.import_module("torch._dynamo")
    return None if "cuda" in kernels else kernels.get(None)


def _chunk_cat_mixed_dtype(
    tensors: list[torch.Tensor], dim: int, num_chunks: int, *, out: torch.Tensor
) -> None:
    """In C++ since torch 2.15; what it runs on CUDA says `foreach_reduce_scatter_copy_in` of `_fsdp_collectives.py`."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        tensors = [tensor.to(out.dtype) for tensor in tensors]
    torch._chunk_cat(tensors, dim, num_chunks, out=out)


def _fits(body: Callable[..., Any], func: Any) -> bool:
    """Since torch 2.15 a function that calls an operator has the operator's name, and other arguments."""
    return len(inspect.signature(body).parameters) == len(func._schema.arguments)


def unseen(facts: OperatorFacts) -> str | None:
    """Why the emulated result of a call may not be a GPU's; None for PyTorch's own operators."""
    if _is_pytorchs(facts):
        return None
    if facts.name.startswith(_FOR_CPUS):
        return f"{facts.name} is made for CPUs: whether a GPU has a kernel for it is unknown"
    return f"{facts.name} is not PyTorch's own: whether its kernel waits for the device is unknown"


# What is known of operators on sparse tensors: views and elementwise work launch kernels and no more, and
# of the others `operators/table.json` says when they wait. op_db has hardly any of them.
_KNOWN_OF_SPARSE = frozenset(
    (
        "_coalesce", "_coalesced_", "_foreach_add_", "_indices", "_nnz", "_sparse_addmm",
        "_sparse_log_softmax", "_sparse_softmax", "_sparse_sparse_matmul", "_to_copy", "_to_dense",
        "_values", "add", "add_", "addmm", "ccol_indices", "clone", "col_indices", "copy_",
        "crow_indices", "detach", "detach_", "div", "empty_like", "indices", "mm", "mul", "mul_", "neg",
        "row_indices", "sparse_mask", "t", "to_dense", "transpose", "values", "zero_", "zeros_like",
    )
)  # fmt: skip

_PRODUCTS = frozenset(("mul", "mul_", "div", "mm", "addmm"))


def unseen_of_sparse(facts: OperatorFacts, inputs: Sequence[torch.Tensor]) -> str | None:
    """Why it is unknown what a GPU's kernel does with sparse tensors; None without, or where it is known."""
    sparse = [tensor for tensor in inputs if tensor.layout in PARTS_OF_SPARSE]
    if not sparse:
        return None
    are_multiplied = len(sparse) > 1 and facts.base_name in _PRODUCTS
    is_known_product = facts.base_name == "mm" and sparse[0].layout == torch.sparse_coo
    if facts.base_name in _KNOWN_OF_SPARSE and (is_known_product or not are_multiplied):
        return None
    return f"{facts.name} has a sparse tensor: whether its kernel waits for the device is unknown"


def _is_pytorchs(facts: OperatorFacts) -> bool:
    """Higher-order operators have no namespace."""
    namespace, dot, _ = facts.name.partition(".")
    return facts.is_aten or not dot or namespace in _PYTORCHS
