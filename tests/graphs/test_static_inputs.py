"""Static inputs: memory of their own in the same make, and what may be loaded into them."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from graphdoctor.graphs.static_inputs import InputMismatch, StaticInputs
from graphdoctor.target.state.clone import clone_inputs, is_overlapping, memory_of
from graphdoctor.target.target import Inputs

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor
    length: int


class Bag:
    """An object without any declaration, such as a batch of a library."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.name = "bag"


def inputs(*args: object, **kwargs: object) -> Inputs:
    return Inputs(args, kwargs)


def clone_of(tensor: torch.Tensor) -> torch.Tensor:
    (clone,) = clone_inputs(inputs(tensor)).args
    assert isinstance(clone, torch.Tensor)
    return clone


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(10, 4)[3:6],
        torch.randn(6, 8)[::2, 1::3],
        torch.randn(1, 4).expand(3, 4),
        torch.randn(8).unfold(0, 3, 1),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randint(9, (5,)),
        torch.randn(3, dtype=torch.float64),
        torch.randn(3, dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.randn(4).to(torch.bfloat16),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.dtype}",
)
def test_a_clone_has_the_same_values_and_make(tensor: torch.Tensor) -> None:
    clone = clone_of(tensor)

    assert clone.dtype == tensor.dtype
    assert torch.equal(clone.to_dense(), tensor.to_dense())
    if tensor.layout == torch.strided:
        assert clone.stride() == tensor.stride()
        assert clone.data_ptr() != tensor.data_ptr() or tensor.numel() == 0


def test_the_same_tensor_twice_stays_one_tensor() -> None:
    data = torch.randn(3)

    first, second = clone_inputs(inputs(data, data)).args

    assert first is second
    assert first is not data


def test_views_of_one_memory_share_the_clone_s_memory() -> None:
    whole = torch.randn(8)
    clone, part, bits = clone_inputs(inputs(whole, whole[2:5], whole.view(torch.int32)[2:])).args

    clone[2] = 7.0

    assert part[0] == 7.0
    assert bits[0] == torch.tensor(7.0).view(torch.int32)
    assert whole[2] != 7.0


def test_kept_memory_is_passed_on_as_it_is() -> None:
    state = torch.randn(4)

    view, data = clone_inputs(inputs(state[1:], torch.randn(3)), kept=memory_of([state])).args

    state[1] = 5.0
    assert view[0] == 5.0
    assert isinstance(data, torch.Tensor)


@pytest.mark.parametrize("wants", [True, False])
def test_gradients_are_wanted_as_before(wants: bool) -> None:
    clone = clone_of(torch.randn(3, requires_grad=wants))
    parameter = clone_of(torch.nn.Parameter(torch.randn(3), requires_grad=wants))

    assert clone.is_leaf and clone.requires_grad is wants
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad is wants


def test_containers_keep_their_types_and_the_originals() -> None:
    data = torch.randn(3)
    given = inputs(
        Pair(data, 1), [data], {"a": data, 3: "b"}, Batch(data, 3), Bag(data), size=(data, None)
    )

    clone = clone_inputs(given)

    pair, items, mapping, batch, bag = clone.args
    assert (type(pair), type(batch), type(bag)) == (Pair, Batch, Bag)
    assert pair.left is items[0] is mapping["a"] is batch.tokens is bag.values
    assert pair.left is not data
    assert (mapping[3], batch.length, bag.name, clone.kwargs["size"][1]) == ("b", 3, "bag", None)
    assert given.args[4].values is data


def test_a_packed_sequence_is_cloned() -> None:
    packed = pack_padded_sequence(torch.randn(2, 3, 4), [3, 2], batch_first=True)

    (clone,) = clone_inputs(inputs(packed)).args

    assert type(clone) is type(packed)
    assert torch.equal(clone.data, packed.data)
    assert clone.data.data_ptr() != packed.data.data_ptr()


def test_loading_copies_values_and_keeps_addresses() -> None:
    static = clone_inputs(inputs(torch.zeros(2, 3), mask=torch.zeros(3, dtype=torch.bool)))
    address = static.args[0].data_ptr()
    fresh = inputs(torch.randn(3, 2).t(), mask=torch.tensor([True, False, True]))

    StaticInputs(static).load(fresh)

    assert static.args[0].data_ptr() == address
    assert torch.equal(static.args[0], fresh.args[0])
    assert torch.equal(static.kwargs["mask"], fresh.kwargs["mask"])


def test_an_input_that_wants_gradients_can_be_loaded_twice() -> None:
    static = clone_inputs(inputs(torch.zeros(3, requires_grad=True)))

    for _ in range(2):
        fresh = torch.randn(3, requires_grad=True)
        StaticInputs(static).load(inputs(fresh))

    assert torch.equal(static.args[0], fresh)
    assert static.args[0].is_leaf


def test_an_expanded_input_takes_another_expanded_one() -> None:
    static = clone_inputs(inputs(torch.zeros(1, 4).expand(3, 4)))
    fresh = torch.randn(1, 4).expand(3, 4)

    StaticInputs(static).load(inputs(fresh))

    assert torch.equal(static.args[0], fresh)
    assert static.args[0].stride() == (0, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), r"shape of inputs\[0\] changed from \(2, 3\) to"),
        (torch.zeros(2), torch.zeros(2).double(), "dtype .* from torch.float32 to torch.float64"),
        (torch.zeros(2), torch.zeros(2).to_sparse(), "layout"),
        (torch.zeros(1, 4).expand(3, 4), torch.zeros(3, 4), r"stride .* \(0, 1\) to \(4, 1\)"),
        (torch.zeros(2), 3, r"inputs\[0\] changed from Tensor to int"),
        (3, 4, r"inputs\[0\] changed from 3 to 4"),
        (True, 1, "from bool to int"),
        ("mean", "sum", "'mean' to 'sum'"),
        ([1, 2], [1], r"with inputs\[0\]\[1\], which these inputs lack"),
        ({"a": 1}, {"a": 1, "b": 2}, r"without inputs\[0\]\.b, which these inputs have"),
        pytest.param(object(), object(), "a value that is not a tensor is frozen", id="objects"),
    ],
    ids=str,
)
def test_a_broken_invariant_is_named(old: object, new: object, message: str) -> None:
    with pytest.raises(InputMismatch, match=message):
        StaticInputs(inputs(old)).load(inputs(new))


def test_nothing_is_copied_when_one_input_does_not_fit() -> None:
    static = inputs(torch.zeros(2), torch.zeros(2))

    with pytest.raises(InputMismatch):
        StaticInputs(static).load(inputs(torch.ones(2), torch.ones(3)))

    assert torch.equal(static.args[0], torch.zeros(2))


@pytest.mark.parametrize("value", [2, 1.5, "x", None, float("nan"), (1, 2), len])
def test_equal_leaves_that_are_no_tensors_fit(value: object) -> None:
    StaticInputs(inputs(value)).load(inputs(value))


def test_numpy_leaves_are_compared_by_value() -> None:
    numpy = pytest.importorskip("numpy")

    StaticInputs(inputs(numpy.arange(3))).load(inputs(numpy.arange(3)))
    with pytest.raises(InputMismatch):
        StaticInputs(inputs(numpy.arange(3))).load(inputs(numpy.zeros(3)))


@pytest.mark.parametrize(
    ("tensor", "overlaps"),
    [
        (torch.zeros(3, 4), False),
        (torch.zeros(3, 4).t(), False),
        (torch.zeros(6, 8)[::2, ::3], False),
        (torch.zeros(1, 4).expand(3, 4), True),
        (torch.zeros(8).unfold(0, 3, 1), True),
        (torch.zeros(9).unfold(0, 3, 3), False),
        (torch.zeros(1, 4).expand(1, 4), False),
    ],
)
def test_overlap_is_seen(tensor: torch.Tensor, overlaps: bool) -> None:
    assert is_overlapping(tensor) is overlaps


def test_the_same_call_loaded_again_brings_its_newer_values() -> None:
    static, x = inputs(torch.zeros(3)), torch.ones(3)
    loader, fresh = StaticInputs(static), inputs(x)
    loader.load(fresh)
    x.fill_(2.0)
    loader.load(fresh)
    (filled,) = static.args
    assert isinstance(filled, torch.Tensor) and filled.tolist() == [2.0, 2.0, 2.0]
    loader.load(inputs(torch.full((3,), 5.0)))
    assert filled.tolist() == [5.0, 5.0, 5.0]
