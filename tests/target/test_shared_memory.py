"""Memory that nobody else knows the address of is copied when somebody writes there, and not before."""

from __future__ import annotations

import gc

import pytest
import torch

from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.twins import digest
from graphdoctor.target.state.saved_tensor import (
    USERS_MEMORY,
    address_of,
    begin_of,
    contents_of,
    give_own_memory,
    is_shared,
)
from graphdoctor.target.state.snapshot import snapshot


class Ours:
    """All memory is ours."""

    def holds_values(self, storage: torch.UntypedStorage) -> bool:
        return True

    def is_ours(self, storage: torch.UntypedStorage) -> bool:
        return True


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.arange(4096, dtype=torch.float32)


def test_what_nothing_writes_is_held_once(weight: torch.Tensor) -> None:
    begin = begin_of(weight)
    first = snapshot({"weight": weight}, memory=Ours())
    second = snapshot({"weight": weight}, memory=Ours())
    for saved in (first, second, first):
        saved.restore()
    assert is_shared(weight) and begin_of(weight) == begin


@pytest.mark.parametrize("written", [slice(None), slice(7, 8)])
def test_what_is_written_is_put_back(weight: torch.Tensor, written: slice) -> None:
    then = weight.clone()
    saved = snapshot({"weight": weight}, memory=Ours())
    for _ in range(2):
        weight[written] = -1.0
        assert not torch.equal(weight, then)
        saved.restore()
        assert torch.equal(weight, then)


def test_of_two_moments_each_is_put_back(weight: torch.Tensor) -> None:
    first = snapshot({"weight": weight}, memory=Ours())
    weight.fill_(1.0)
    second = snapshot({"weight": weight}, memory=Ours())
    weight.fill_(2.0)
    first.restore()
    assert weight[:3].tolist() == [0.0, 1.0, 2.0]
    second.restore()
    assert weight.unique().tolist() == [1.0]


def test_memory_that_was_freed_is_put_back(weight: torch.Tensor) -> None:
    then = weight.clone()
    saved = snapshot({"weight": weight}, memory=Ours())
    give_own_memory(weight)  # as the emulated device does before it
    weight.untyped_storage().resize_(0)
    saved.restore()
    assert torch.equal(weight, then)


def test_the_user_s_memory_stays_where_it_is(weight: torch.Tensor) -> None:
    array = weight.numpy()
    saved = snapshot({"weight": weight}, memory=USERS_MEMORY)
    weight.fill_(1.0)
    assert array[5] == 1.0
    saved.restore()
    array[3] = 9.0
    assert weight[:5].tolist() == [0.0, 1.0, 2.0, 9.0, 4.0]


def test_after_the_last_snapshot_memory_is_its_tensor_s_own_and_where_it_was(
    weight: torch.Tensor,
) -> None:
    begin = begin_of(weight)
    saved = snapshot({"weight": weight}, memory=Ours())
    assert is_shared(weight)
    del saved
    gc.collect()
    assert not is_shared(weight) and begin_of(weight) == begin


def test_shared_memory_is_told_by_its_copy_until_somebody_writes(weight: torch.Tensor) -> None:
    saved = snapshot({"weight": weight}, memory=Ours())
    known = contents_of(weight), contents_of(weight[2:])
    assert known[0][0] == known[1][0] == "copy" and known[0] != known[1]
    weight[5] = -5.0
    assert contents_of(weight)[0] == "sums"
    saved.restore()
    assert (contents_of(weight), contents_of(weight[2:])) == known


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_bytes_that_are_no_whole_words_are_all_told(size: int) -> None:
    held = torch.arange(size, dtype=torch.uint8)
    other = torch.cat([held[:-1], held[-1:] + 1])
    assert contents_of(held) == contents_of(held.clone()) != contents_of(other)


def test_a_digest_leaves_shared_memory_shared(weight: torch.Tensor) -> None:
    saved = snapshot({"weight": weight}, memory=Ours())
    tensors = {"whole": weight, "part": weight[:8], "next": weight[8:16]}
    found = digest(Footprint(tensors, {}, {})).tensors
    assert is_shared(weight) and len(set(found.values())) == len(tensors)
    assert address_of(weight[8:]) == begin_of(weight) + 8 * weight.element_size()
    saved.restore()
