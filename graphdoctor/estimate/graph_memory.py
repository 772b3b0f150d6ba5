"""A recorded step -> the memory that a graph of it would hold, and what each part of it is for; no torch.

A graph keeps its inputs, its outputs and room for all that is alive at one time in between, for as long as
it lives. The recording knows the size of every tensor, and the operators that make it and use it last; the
caching allocator's own rules say what it reserves for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import kernel_kind
from graphdoctor.estimate.pool_blocks import Blocks, rounded
from graphdoctor.values.recording import Iteration, TensorUse
from graphdoctor.values.speed import GraphMemory

# CUDABlas.cpp, parseChosenWorkspaceSize: 4096 KiB eight times on Hopper, else twice and 16 KiB eight times.
_BLAS_HOPPER, _BLAS_OTHER = 4096 * 1024 * 8, 4096 * 1024 * 2 + 16 * 1024 * 8
_HOPPER = ("h100", "h200")


def graph_memory(iteration: Iteration, profile: DeviceProfile) -> GraphMemory:
    """What a graph of this iteration would hold on the profile's GPU."""
    uses = _largest_uses(iteration)
    external = {each.storage for each in iteration.externals}
    outputs = {
        leaf.value.storage
        for leaf in iteration.outputs
        if isinstance(leaf.value, TensorUse) and leaf.value.is_cuda
    } - external
    blocks = Blocks()
    peak = live = 0
    for made, gone in _lifetimes(iteration, external, outputs):
        for storage in made:
            size = rounded(uses[storage])
            blocks.allocate(storage, size)
            live += size
        peak = max(peak, live)
        for storage in gone:
            blocks.free(storage)
            live -= rounded(uses[storage])
    kept = sum(rounded(uses[storage]) for storage in outputs if storage in uses)
    return GraphMemory(
        inputs_bytes=_inputs_bytes(iteration),
        outputs_bytes=kept,
        intermediates_bytes=max(0, peak - kept),
        pool_bytes=blocks.reserved_bytes,
        workspace_bytes=_workspace_bytes(iteration, profile),
    )


def _largest_uses(iteration: Iteration) -> dict[int, int]:
    """The bytes of each storage on the GPU: the furthest that any tensor in it reaches."""
    found: dict[int, int] = {}
    for op in iteration.ops:
        for use in (*op.inputs, *op.outputs):
            if use.is_cuda:
                found[use.storage] = max(found.get(use.storage, 0), _reach(use))
    return found


def _reach(use: TensorUse) -> int:
    if not use.numel:
        return 0
    if len(use.stride) != len(use.shape):
        return use.nbytes
    last = sum((size - 1) * step for size, step in zip(use.shape, use.stride, strict=True))
    return (use.offset + last + 1) * use.itemsize


def _lifetimes(
    iteration: Iteration, external: set[int], outputs: set[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """For each operator, the storages that it makes, and those that nobody reads after it.

    What the backward pass makes and no operator reads is a gradient that somebody keeps.
    """
    last: dict[int, int] = {}
    first: dict[int, int] = {}
    for place, op in enumerate(iteration.ops):
        for use in (*op.inputs, *op.outputs):
            if use.is_cuda and use.storage not in external:
                first.setdefault(use.storage, place)
                last[use.storage] = place
    born: dict[int, list[int]] = {}
    dying: dict[int, list[int]] = {}
    for storage, place in first.items():
        born.setdefault(place, []).append(storage)
        is_unread = last[storage] == place and iteration.ops[place].phase == "backward"
        if storage not in outputs and not is_unread:
            dying.setdefault(last[storage], []).append(storage)
    for place in range(len(iteration.ops)):
        yield born.get(place, []), dying.get(place, [])


def _inputs_bytes(iteration: Iteration) -> int:
    """The copies that a graph reads, one for each input's memory."""
    sizes: dict[int, int] = {}
    for leaf in iteration.inputs:
        use = leaf.value
        if isinstance(use, TensorUse) and use.is_cuda:
            sizes[use.storage] = max(sizes.get(use.storage, 0), rounded(_reach(use)))
    return sum(sizes.values())


def _workspace_bytes(iteration: Iteration, profile: DeviceProfile) -> int:
    """cuBLAS's, of the stream that the capture takes: torch keeps one for each stream."""
    if not any(kernel_kind(op) == "matmul" for op in iteration.ops):
        return 0
    if profile.name.startswith("mi"):
        return 0
    return _BLAS_HOPPER if profile.name.startswith(_HOPPER) else _BLAS_OTHER
