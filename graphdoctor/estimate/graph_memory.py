"""Estimates the memory that a graph of a recorded step would hold, and what each part is for. No torch.

A graph keeps its inputs, its outputs and room for all that is alive at one time in between, for as long as
it lives. The recording knows the size of every tensor, and the operators that make it and use it last; the
caching allocator's own rules say what it reserves for them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import kernel_kind
from graphdoctor.values.recording import Iteration, TensorUse
from graphdoctor.values.speed import GraphMemory

# CUDACachingAllocator.cpp: sizes are rounded up to 512 bytes. Up to 1 MiB they come out of segments of 2 MiB,
# up to 10 MiB out of segments of 20 MiB, and larger ones have a segment of their own, in steps of 2 MiB. The
# smallest free block that fits is taken and split, and neighbours that are free are joined.

_STEP = 512
_SMALL, _SMALL_SEGMENT = 1 << 20, 2 << 20
_LARGE, _LARGE_SEGMENT = 10 << 20, 20 << 20
_ROUND = 2 << 20


def rounded(size: int) -> int:
    """The bytes that a block for `size` takes."""
    return -(-size // _STEP) * _STEP


@dataclass(eq=False, slots=True)
class _Block:
    size: int
    at: int  # the order in which blocks of one size are taken
    is_small: bool
    before: _Block | None = None
    after: _Block | None = None
    is_free: bool = False


class Blocks:
    """A pool of memory that begins empty and gives nothing back, as that of a graph."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._used: dict[int, _Block] = {}
        self._free: dict[bool, list[_Block]] = {True: [], False: []}

    def allocate(self, key: int, size: int) -> None:
        """A block of `size`, already rounded, under a name."""
        if not size:
            return
        is_small = size <= _SMALL
        free = self._free[is_small]
        place = bisect_left(free, (size, -1), key=_order)
        block = free.pop(place) if place < len(free) else self._segment(size, is_small)
        block.is_free = False
        self._used[key] = block
        left = block.size - size
        if left >= _STEP if is_small else left > _SMALL:
            rest = _Block(left, block.at + size, is_small, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self._put_back(rest)

    def free(self, key: int) -> None:
        """Give a block back to the pool; a name that has none is left alone."""
        block = self._used.pop(key, None)
        if block is None:
            return
        before, after = block.before, block.after
        if before is not None and before.is_free:
            self._take(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.is_free:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._put_back(block)

    def _segment(self, size: int, is_small: bool) -> _Block:
        if is_small:
            length = _SMALL_SEGMENT
        elif size < _LARGE:
            length = _LARGE_SEGMENT
        else:
            length = -(-size // _ROUND) * _ROUND
        block = _Block(length, self.reserved_bytes, is_small)
        self.reserved_bytes += length
        return block

    def _put_back(self, block: _Block) -> None:
        block.is_free = True
        insort(self._free[block.is_small], block, key=_order)

    def _take(self, block: _Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, _order(block), key=_order)]


def _order(block: _Block) -> tuple[int, int]:
    return block.size, block.at


# CUDABlas.cpp, parseChosenWorkspaceSize: 4096 KiB eight times on Hopper, else twice and 16 KiB eight times.
_BLAS_HOPPER, _BLAS_OTHER = 4096 * 1024 * 8, 4096 * 1024 * 2 + 16 * 1024 * 8
_HOPPER = ("h100", "h200")


def graph_memory(iteration: Iteration, profile: DeviceProfile) -> GraphMemory:
    """What a graph of this iteration would hold on the profile's GPU."""
    # The bytes of each storage on the GPU: the furthest that any tensor in it reaches.
    uses: dict[int, int] = {}
    for op in iteration.ops:
        for use in (*op.inputs, *op.outputs):
            if use.is_cuda:
                uses[use.storage] = max(uses.get(use.storage, 0), _reach(use))
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
