"""Equal bits give equal digests, and any change of a value, place, shape or dtype another one."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoctor.graphs.footprint import Footprint
from graphdoctor.proof.digest import digest


def digest_of(*tensors: torch.Tensor) -> object:
    return digest(Footprint({str(i): t for i, t in enumerate(tensors)}, {}, {}))


def test_equal_tensors_in_other_memory_have_equal_digests() -> None:
    tensor = torch.randn(300_001)
    assert digest_of(tensor) == digest_of(tensor.clone())


def test_where_a_view_begins_does_not_matter() -> None:
    memory = torch.randn(41)
    for view in (memory[1:41], memory[:40]):
        assert digest_of(view) == digest_of(view.clone())


def test_strides_do_not_matter_but_shapes_do() -> None:
    tensor = torch.randn(6, 4)
    assert digest_of(tensor.t()) == digest_of(tensor.t().contiguous())
    assert digest_of(tensor) != digest_of(tensor.reshape(4, 6))


def test_dtypes_of_equal_bits_differ() -> None:
    assert digest_of(torch.zeros(4)) != digest_of(torch.zeros(4, dtype=torch.int32))


def test_minus_zero_is_another_value_than_zero() -> None:
    assert digest_of(torch.tensor([0.0, 0.0])) != digest_of(torch.tensor([0.0, -0.0]))


@settings(deadline=None)
@given(st.data(), st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool]))
def test_one_changed_element_changes_the_digest(data: st.DataObject, dtype: torch.dtype) -> None:
    size = data.draw(st.integers(1, 700_000))
    place = data.draw(st.integers(0, size - 1))
    tensor = torch.zeros(size, dtype=dtype)
    changed = tensor.clone()
    changed[place] = 1
    assert digest_of(tensor) != digest_of(changed)


@settings(deadline=None)
@given(st.data())
def test_two_exchanged_elements_change_the_digest(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 600_000))
    one, other = data.draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))
    tensor = torch.arange(size, dtype=torch.float32)
    changed = tensor.clone()
    changed[one], changed[other] = tensor[other], tensor[one]
    assert (digest_of(tensor) == digest_of(changed)) == (one == other)
