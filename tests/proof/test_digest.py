"""Equal bits give equal digests, and any change of a value, place, shape or dtype another one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof import twins as module
from graphdoctor.proof.twins import digest
from graphdoctor.target.state.snapshot import snapshot


def digest_of(*tensors: torch.Tensor) -> object:
    return digest(Footprint({str(i): t for i, t in enumerate(tensors)}, {}, {}))


def test_equal_tensors_in_other_memory_have_equal_digests() -> None:
    tensor = torch.randn(300_001)
    assert digest_of(tensor) == digest_of(tensor.clone())


def test_where_a_view_begins_does_not_matter() -> None:
    memory = torch.randn(41)
    for view in (memory[1:41], memory[:40]):
        assert digest_of(view) == digest_of(view.clone())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.float32])
def test_small_elements_are_read_in_words_wherever_they_begin(dtype: torch.dtype) -> None:
    memory = torch.arange(48).to(dtype)
    for start in range(19):
        for size in (8, 9, 16, 24):
            view = memory[start : start + size]
            assert digest_of(view) == digest_of(view.clone())


def test_strides_do_not_matter_but_shapes_do() -> None:
    tensor = torch.randn(6, 4)
    assert digest_of(tensor.t()) == digest_of(tensor.t().contiguous())
    assert digest_of(tensor) != digest_of(tensor.reshape(4, 6))


def test_dtypes_of_equal_bits_differ() -> None:
    assert digest_of(torch.zeros(4)) != digest_of(torch.zeros(4, dtype=torch.int32))


def test_tensors_without_strides_have_digests_of_their_values() -> None:
    one, other = torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()
    assert digest_of(one) == digest_of(one.clone()) != digest_of(other)


def test_a_tensor_that_has_several_names_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[torch.Tensor] = []
    dense_bits = module.dense_bits

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        looked.append(tensor)
        return dense_bits(tensor)

    monkeypatch.setattr(module, "dense_bits", noted)
    memory = torch.randn(6, 4)
    digest_of(memory, memory[:], memory.view(6, 4))
    assert len(looked) == 1
    digest_of(memory, memory.t(), memory[:3], memory[3:], memory.view(torch.int32))
    assert len(looked) == 1 + 5  # other places, strides, shapes and dtypes are other tensors


def test_minus_zero_is_another_value_than_zero() -> None:
    assert digest_of(torch.tensor([0.0, 0.0])) != digest_of(torch.tensor([0.0, -0.0]))


@given(st.data(), st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool]))
def test_one_changed_element_changes_the_digest(data: st.DataObject, dtype: torch.dtype) -> None:
    size = data.draw(st.integers(1, 700_000))
    place = data.draw(st.integers(0, size - 1))
    tensor = torch.zeros(size, dtype=dtype)
    changed = tensor.clone()
    changed[place] = 1
    assert digest_of(tensor) != digest_of(changed)


@given(st.data())
def test_two_exchanged_elements_change_the_digest(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 600_000))
    one, other = data.draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))
    tensor = torch.arange(size, dtype=torch.float32)
    changed = tensor.clone()
    changed[one], changed[other] = tensor[other], tensor[one]
    assert (digest_of(tensor) == digest_of(changed)) == (one == other)


@pytest.mark.parametrize("places", [(0, 2), (1, 3), (0, 1), (5, 300_001)])
def test_the_signs_of_two_elements_change_the_digest(places: tuple[int, int]) -> None:
    """Their words differ in the highest bit only, which sums of words lose."""
    tensor = torch.arange(1.0, 300_011.0, dtype=torch.float64)
    changed = tensor.clone()
    changed[list(places)] *= -1
    assert digest_of(tensor) != digest_of(changed)


def test_memory_that_a_snapshot_has_is_told_by_it_until_it_changes() -> None:
    weights = torch.randn(5_000)
    with_copy, held = digest_of(weights), snapshot({"weights": weights})
    named = digest_of(weights)
    assert named == digest_of(weights) != with_copy
    weights[7] += 1
    assert digest_of(weights) != named
    held.restore()
    assert digest_of(weights) == named
