"""Allocations and frees in order -> what PyTorch's caching allocator reserves for them, by its own rules.

CUDACachingAllocator.cpp: sizes are rounded up to 512 bytes. Up to 1 MiB they come out of segments of 2 MiB,
up to 10 MiB out of segments of 20 MiB, and larger ones have a segment of their own, in steps of 2 MiB. The
smallest free block that fits is taken and split, and neighbours that are free are joined.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

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
