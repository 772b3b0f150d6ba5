"""The memory that DistributedDataParallel and `fully_shard` hold for a module of the state.

Both live as long as their module does, but a walk of the state does not come to what they hold: buckets of
gradients lie in C++, and gathered parameters in torch's inner workings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from msgspec.structs import replace

from graphdoctor.target.state.walk import Walk
from graphdoctor.values.recording import External, Op


def gathered_parameters(roots: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """What `fully_shard` gathers parameters into, by the path of the module."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    from torch.distributed.fsdp import FSDPModule

    for path, value, _ in Walk(roots):
        if isinstance(value, FSDPModule):
            for tensor in _tensors_of(value._get_fsdp_state()):
                yield f"{path}, gathered", tensor


def _tensors_of(state: object) -> Iterator[torch.Tensor]:
    one = getattr(state, "_fsdp_param_group", None)  # torch up to 2.10 knows a single group
    groups = getattr(state, "_fsdp_param_groups", [one] if one is not None else [])
    for group in groups:
        for parameter in group.fsdp_params:
            for held in vars(parameter).values():
                for each in held if isinstance(held, (list, tuple)) else (held,):
                    if type(each) in (torch.Tensor, torch.nn.Parameter):
                        yield each


def with_buckets(
    externals: Sequence[External], ops: Sequence[Op], roots: Mapping[str, object]
) -> tuple[External, ...]:
    """The same, with the buckets of DistributedDataParallel as state.

    The reducer writes a gradient into its bucket before anything reads that, which no tensor that
    somebody keeps for its values has done to it.
    """
    unknown = {one.storage for one in externals if one.origin == "unknown"}
    path = path_of_ddp(roots) if unknown else None
    if path is None:
        return tuple(externals)
    buckets = unknown & _filled_in_backward(ops)
    return tuple(
        replace(one, origin="state", name=f"{path}.reducer") if one.storage in buckets else one
        for one in externals
    )


def path_of_ddp(roots: Mapping[str, object]) -> str | None:
    """The first module of the state that is torch's DistributedDataParallel."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    from torch.nn.parallel import DistributedDataParallel

    walk = Walk(roots)
    return next(
        (str(path) for path, one, _ in walk if isinstance(one, DistributedDataParallel)), None
    )


def _filled_in_backward(ops: Sequence[Op]) -> frozenset[int]:
    """Storages that the backward pass writes a gradient into before it reads them.

    Source: Reducer::mark_variable_ready_dense in torch/csrc/distributed/c10d/reducer.cpp.
    """
    met: set[int] = set()
    filled: set[int] = set()
    for op in ops:
        if op.is_view:
            continue
        new = {use.storage for use in op.inputs} - met
        if op.phase == "backward" and op.name in ("aten.mul.out", "aten.copy_.default"):
            filled |= new & set(op.writes)
        met |= new
    return frozenset(filled)
