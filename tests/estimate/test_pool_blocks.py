"""What the caching allocator reserves, by rules that can be worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.estimate.graph_memory import Blocks, rounded

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(("size", "takes"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_sizes_are_rounded_up(size: int, takes: int) -> None:
    assert rounded(size) == takes


@pytest.mark.parametrize(
    ("size", "reserved"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (9 * MIB, 20), (10 * MIB, 10), (11 * MIB + 512, 12)],
)
def test_each_kind_of_size_has_segments_of_its_own(size: int, reserved: int) -> None:
    blocks = Blocks()
    blocks.allocate(1, size)
    assert blocks.reserved_bytes == reserved * MIB


def test_a_segment_is_split_until_it_is_full() -> None:
    blocks = Blocks()
    for key in range(2):
        blocks.allocate(key, MIB)
    assert blocks.reserved_bytes == 2 * MIB
    blocks.allocate(2, 512)
    assert blocks.reserved_bytes == 4 * MIB


def test_what_was_freed_is_used_again() -> None:
    blocks = Blocks()
    for key in range(50):
        blocks.allocate(key, 12 * MIB)
        blocks.free(key)
    assert blocks.reserved_bytes == 12 * MIB


def test_free_neighbours_are_joined() -> None:
    blocks = Blocks()
    for key in range(4):
        blocks.allocate(key, 512 * KIB)
    for key in (1, 2, 0):
        blocks.free(key)
    blocks.allocate(9, MIB)
    assert blocks.reserved_bytes == 2 * MIB


def test_blocks_that_are_not_neighbours_stay_apart() -> None:
    blocks = Blocks()
    for key in range(4):
        blocks.allocate(key, 512 * KIB)
    blocks.free(0)
    blocks.free(2)
    blocks.allocate(9, MIB)
    assert blocks.reserved_bytes == 4 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    blocks = Blocks()
    blocks.allocate(1, 40 * MIB)
    blocks.allocate(2, 12 * MIB)
    blocks.free(1)
    blocks.free(2)
    blocks.allocate(3, 12 * MIB)
    blocks.allocate(4, 40 * MIB)
    assert blocks.reserved_bytes == 52 * MIB


def test_what_takes_nothing_has_no_block() -> None:
    blocks = Blocks()
    blocks.allocate(1, 0)
    blocks.free(1)
    blocks.free(2)
    assert blocks.reserved_bytes == 0


def test_what_a_large_block_leaves_of_its_segment_is_used() -> None:
    blocks = Blocks()
    blocks.allocate(1, 2 * MIB)
    blocks.allocate(2, 18 * MIB)
    assert blocks.reserved_bytes == 20 * MIB


@given(
    st.lists(
        st.one_of(st.integers(1, 2 * MIB), st.integers(MIB, 30 * MIB), st.none()), max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_whatever_the_order_all_that_is_freed_is_whole_again(
    sizes: list[int | None], draw: random.Random
) -> None:
    """Every segment is one free block at the end, so that what would fill all of them takes nothing more."""
    blocks, held, lengths = Blocks(), [], []
    for key, size in enumerate(sizes):
        if size is None and held:
            blocks.free(held.pop(draw.randrange(len(held))))
        elif size is not None:
            before = blocks.reserved_bytes
            blocks.allocate(key, rounded(size))
            held.append(key)
            if blocks.reserved_bytes > before:
                lengths.append(blocks.reserved_bytes - before)
    draw.shuffle(held)
    for key in held:
        blocks.free(key)
    reserved = blocks.reserved_bytes
    assert reserved == sum(lengths)
    for key, length in enumerate(sorted(lengths, reverse=True)):
        for half in range(2 if length == 2 * MIB else 1):
            blocks.allocate(
                1000 + 2 * key + half, min(length, MIB) if length == 2 * MIB else length
            )
    assert blocks.reserved_bytes == reserved


def test_the_last_512_bytes_of_a_small_segment_are_a_block() -> None:
    """CUDACachingAllocator.cpp, should_split: a small block is split where 512 bytes or more are left."""
    blocks = Blocks()
    for key, size in enumerate((MIB, MIB - 512, 512)):
        blocks.allocate(key, size)
    assert blocks.reserved_bytes == 2 * MIB


def test_what_is_left_of_a_large_segment_is_a_block_above_a_mebibyte_only() -> None:
    """The same of large blocks: more than 1 MiB has to be left."""
    for left, reserved in ((MIB, 20), (MIB + 512, 20)):
        blocks = Blocks()
        blocks.allocate(1, 9 * MIB)
        blocks.allocate(2, 11 * MIB - left)
        assert blocks.reserved_bytes == reserved * MIB
        blocks.allocate(3, MIB + 512)
        assert blocks.reserved_bytes == (20 if left > MIB else 40) * MIB
