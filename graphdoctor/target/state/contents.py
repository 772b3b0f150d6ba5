"""A small digest of memory, equal for equal bits."""

from __future__ import annotations

from functools import cache

import torch

from graphdoctor.target.state.saved_tensor import copy_with_bits_of

_CHUNK = 1 << 16  # words at a time: they and their factors stay in the cache
_SEED = 0x6D0E  # any number: fixed, so that an analysis can be repeated
_WORD = 8


Contents = tuple[str | int, ...]


def contents_of(flat: torch.Tensor) -> Contents:
    """What a contiguous tensor of one dimension holds, after a word that says how it is told.

    Memory that still has the bits of a snapshot's copy is named by that. All else is summed up: each word
    times a random factor, and its upper half times another. Each half of a word that differs then changes
    32 bits or more of a sum, so that two contents have equal sums by chance in one case of 2**32 at most.
    """
    of_copy = copy_with_bits_of(flat)
    return ("sums", *_sums(flat)) if of_copy is None else ("copy", *of_copy)


def _sums(flat: torch.Tensor) -> tuple[int, ...]:
    found = []
    factors, others = _factors()
    words = _words(flat)
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK]
        size = chunk.numel()
        found.append(int(torch.dot(chunk, factors[:size])))
        found.append(int(torch.dot(chunk >> 32, others[:size])))
    return tuple(found)


def _words(flat: torch.Tensor) -> torch.Tensor:
    """The bytes as whole words; what is missing to the last one is zeros."""
    if flat.dtype is torch.int64:
        return flat
    missing = -flat.nbytes % _WORD
    if missing or flat.storage_offset() * flat.element_size() % _WORD:
        padded = torch.zeros(flat.nbytes + missing, dtype=torch.uint8)
        padded[: flat.nbytes].copy_(flat.view(torch.uint8))
        return padded.view(torch.int64)
    return flat.view(torch.int64)


@cache
def _factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    low, high = -(2**63), 2**63 - 1
    one, other = (torch.randint(low, high, (_CHUNK,), generator=generator) for _ in range(2))
    return one, other
