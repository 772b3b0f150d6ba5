"""Memory of the host is watched by what it holds, and never read where it is gone."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from graphdoctor.graphs.calls.signature import Unwatchable
from graphdoctor.graphs.guards.host_memory import contents_of, is_read_by_host, numbers_of


def test_numbers_of_a_part_of_a_tensor_are_those_that_it_reaches() -> None:
    base = torch.arange(24.0)
    part = base[10:].as_strided((2, 3), (4, 2), 10)  # reaches to element 18
    ask = numbers_of("held", part)
    before = ask()
    base[9] = base[19] = -1.0
    assert ask() == before
    base[18] = -1.0
    assert ask() != before


def test_where_the_memory_ends_before_what_was_captured_nothing_is_read() -> None:
    memory = np.arange(8.0)
    scale = torch.from_numpy(memory)[6:]
    ask = numbers_of("scale", scale)
    assert ask() is not None
    scale.set_(torch.from_numpy(memory[:7]).untyped_storage(), 6, (1,), (1,))
    assert ask() is None


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_of_an_empty_tensor_there_is_nothing_to_read(shape: tuple[int, ...]) -> None:
    ask = numbers_of("held", torch.empty(shape))
    assert ask() == ask()


def test_a_write_that_torch_does_not_count_is_seen_in_a_large_tensor() -> None:
    tensor = torch.zeros(1 << 20)
    ask = numbers_of("held", tensor)
    before = ask()
    tensor.data[1 << 19] = 1.0
    assert ask() != before


def test_too_much_memory_is_refused_with_its_size() -> None:
    for held in (torch.zeros((1 << 20) + 1), np.zeros((1 << 19) + 1)):
        with pytest.raises(Unwatchable, match="has 4 MB of"):
            numbers_of("model.held", held) if isinstance(held, torch.Tensor) else contents_of(
                "model.held", held
            )
    assert contents_of("model.held", np.zeros(1 << 19)) is not None


def test_arrays_of_objects_are_watched_by_their_constants_alone() -> None:
    held = np.array([1, "a", None], dtype=object)
    ask = contents_of("held", held)
    assert ask is not None
    before = ask()
    held[0] = True
    assert ask() != before
    with pytest.raises(Unwatchable, match="array of objects"):
        contents_of("held", np.array([object()], dtype=object))


def test_a_stream_is_what_it_holds_and_where_it_stands() -> None:
    stream = io.StringIO("abc")
    ask = contents_of("held", stream)
    assert ask is not None
    seen = [ask()]
    stream.read(1)
    seen.append(ask())
    stream.close()
    seen.append(ask())
    assert len(set(seen)) == 3
    assert contents_of("held", 5) is None


def test_only_tensors_that_the_host_can_read_are_its() -> None:
    assert is_read_by_host(torch.zeros(1))
    assert not is_read_by_host(torch.zeros(1, device="meta"))
    assert not is_read_by_host(torch.eye(2).to_sparse())
