"""The torch that runs -> which of the refusals that came or went between versions it has."""

from __future__ import annotations

import re

import torch

# pytorch/pytorch#162505, in 2.10 (ROCm/pytorch#2843 says so); measured to be captured with 2.11.0.
_RNG_STATE_IS_CAPTURED = (2, 10)
# pytorch/pytorch#172156, made after 2.10 was cut; measured to be refused with 2.11.0.
_PAGEABLE_COPY_IS_REFUSED = (2, 11)


def torch_version() -> tuple[int, int]:
    """Major and minor version of the torch that runs."""
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def captures_rng_state() -> bool:
    """Whether a capture may read the generator's state, and set it without another seed."""
    return torch_version() >= _RNG_STATE_IS_CAPTURED


def refuses_pageable_copies() -> bool:
    """Whether torch refuses to capture any copy from or to memory that is not pinned.

    Before it did, one with `non_blocking=True` was captured, and its replays read or wrote whatever
    then lay at the address.
    """
    return torch_version() >= _PAGEABLE_COPY_IS_REFUSED
