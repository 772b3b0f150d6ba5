"""Tensors: their values in their memory, their gradients, hooks and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.kinds.kind import Kind, Restore, Surroundings, Visit, saved_dict
from graphdoctor.target.state.saved_tensor import (
    HOOKS_OF_TENSORS,
    SavedStorage,
    SavedTensor,
    Saving,
    saved_sparse,
    wraps_others,
)


class Tensor(Kind):
    types = (torch.Tensor,)
    names_keys = True

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, value = visit.path, visit.value
        assert isinstance(value, torch.Tensor)
        grad = grad_of(value)
        if grad is not None:
            yield Visit(path.attribute("grad"), grad)
        if is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            for name in names:
                yield Visit(path.attribute(name), getattr(value, name))
        for name, child in list(attributes(value).items()):
            # Dynamo's notes on a tensor, such as that its address stays, are for torch.compile alone.
            yield Visit(path.attribute(name), child, not name.startswith("_dynamo_"))
        for name in HOOKS_OF_TENSORS:
            if (hooks := getattr(value, name)) is not None:
                yield Visit(path.attribute(name), hooks, False)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        saving.last.append(saved_grad(value))
        yield saved_dict(attributes(value))
        if is_traceable_wrapper_subclass(value):
            return  # the tensors that it is made of are saved by themselves
        try:
            storage = value.untyped_storage()
        except (NotImplementedError, RuntimeError):
            yield saved_sparse(value)
            return
        # The storage first: a tensor that is put back may look into memory that must be resized for it.
        is_new = storage._cdata not in saving.storages and storage.device.type != "meta"
        if is_new and not wraps_others(value):
            is_held = saving.memory.holds_values(storage)
            is_ours = saving.memory.is_ours(storage)
            found = SavedStorage(storage, is_ours=is_ours) if is_held else None
            saving.storages[storage._cdata] = found
            if found is not None:
                yield found.restore_size
        yield SavedTensor(value).restore


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """`.grad` where there can be one; asking an intermediate tensor would warn."""
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def saved_grad(tensor: torch.Tensor) -> Restore:
    """Which tensor is the gradient. Restored after all tensors: it is refused unless it fits."""
    grad = grad_of(tensor)

    def restore() -> None:
        if grad_of(tensor) is not grad:
            tensor.grad = grad

    return restore
