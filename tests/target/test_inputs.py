"""Fresh inputs differ from the first ones and stay as valid as they were."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.target import Inputs
from graphdoctor.target.inputs.fresh import Called, Redraw, supply, tensors_of, to_inputs
from graphdoctor.values.errors import UsageError, UserCodeError

torch.set_num_threads(1)

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Batch:
    data: torch.Tensor
    name: str


def redrawn(*args: object, times: int = 1) -> tuple[object, ...]:
    make = Redraw(Inputs(args))
    make()
    return tuple([make() for _ in range(times)][-1].args)


def test_the_first_draw_of_a_trial_is_the_next_call_s_and_others_are_no_call_s() -> None:
    make = Redraw(Inputs((torch.rand(3, 4), torch.arange(12).view(3, 4) % 7)))
    make()

    def drawn() -> list[torch.Tensor]:
        return tensors_of(make())

    def tried(draw: int) -> list[torch.Tensor]:
        with make.trying(make.varied, draw=draw):
            return drawn()

    first, again, other = tried(0), tried(0), tried(1)
    made = drawn()
    assert all(map(torch.equal, first, made)) and all(map(torch.equal, first, again))
    assert not any(map(torch.equal, other, made)) and not any(map(torch.equal, made, drawn()))


def one(tensor: torch.Tensor) -> torch.Tensor:
    (made,) = redrawn(tensor)
    assert isinstance(made, torch.Tensor)
    return made


@given(
    st.lists(st.integers(1, 5), max_size=4),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64,
                     torch.int32, torch.uint8, torch.bool]),
    st.integers(0, 2**16),
)  # fmt: skip
def test_make_and_range_are_kept(shape: list[int], dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator) * 20
    values = drawn.abs().to(dtype) if dtype is torch.uint8 else drawn.to(dtype)
    made = one(values)
    assert (made.shape, made.stride(), made.dtype) == (values.shape, values.stride(), dtype)
    if values.numel():
        assert values.min() <= made.min() and made.max() <= values.max()


def test_the_first_call_gives_copies_of_the_given_values() -> None:
    given_values = torch.randn(4, 4)
    make = Redraw(Inputs((given_values,)))
    first = make().args[0]
    assert isinstance(first, torch.Tensor)
    assert torch.equal(first, given_values) and first is not given_values
    first.zero_()
    assert given_values.any() and not torch.equal(make().args[0], given_values)


def test_each_call_differs_and_the_users_generator_is_not_touched() -> None:
    before = torch.get_rng_state()
    make = Redraw(Inputs((torch.arange(12.0).reshape(3, 4).sin(),)))
    made = [make().args[0] for _ in range(4)]
    assert all(not torch.equal(a, b) for a, b in pairwise(made))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "kept",
    [
        torch.arange(7),
        torch.arange(5).repeat(3, 1),
        torch.arange(3, 30, 3),
        torch.tensor([2, 0, 1, 3]),
        torch.tensor([5, 3, 3, 1]),
        torch.full((3, 3), 2.5),
        torch.full((4,), 3),
        torch.ones(4, 4, dtype=torch.bool),
        torch.ones(4, 4, dtype=torch.bool).tril(),
        torch.full((4, 4), float("-inf")).triu(1),
        torch.tensor([1.0, float("nan")]),
        torch.tensor(3),
        torch.tensor(0.5),
    ],
    ids=str,
)
def test_what_has_a_meaning_stays_as_it_is(kept: torch.Tensor) -> None:
    assert torch.allclose(one(kept).double(), kept.double(), equal_nan=True)


def test_offsets_stay_sorted_between_their_ends() -> None:
    offsets = torch.tensor([0, 3, 3, 7, 20])
    strict = torch.tensor([0, 9, 12, 31], dtype=torch.int32)
    for given_values, is_strict in ((offsets, False), (strict, True)):
        made = [redrawn(given_values, times=n)[0] for n in range(1, 6)]
        for new in made:
            steps = new.diff()
            assert (new[0], new[-1]) == (given_values[0], given_values[-1])
            assert bool((steps > 0).all() if is_strict else (steps >= 0).all())
        assert any(not torch.equal(new, given_values) for new in made)


def test_masks_keep_their_density_and_leave_no_row_empty() -> None:
    mask = torch.rand(200, 50, generator=torch.Generator().manual_seed(0)) < 0.2
    mask[:, 3] = True
    for kind in (mask, mask.long(), mask.float(), torch.where(mask, 0.0, float("-inf"))):
        made = one(kind)
        is_set = made == kind.max()
        assert abs(float(is_set.float().mean()) - float(mask.float().mean())) < 0.02
        assert set(made.unique().tolist()) == set(kind.unique().tolist())
        assert bool(is_set.any(-1).all()) and not torch.equal(made, kind)


def test_padding_masks_stay_padding_masks() -> None:
    lengths = torch.tensor([5, 9, 2, 7, 8, 3])
    mask = torch.arange(10) < lengths[:, None]
    for side in (mask, mask.flip(-1)):
        made = one(side)
        steps = made.long().diff(dim=-1)
        assert bool((steps <= 0).all()) or bool((steps >= 0).all())
        assert not torch.equal(made, side)


def test_negative_marks_are_never_blurred() -> None:
    labels = torch.tensor([[3, -100, 8], [-100, -100, 5]])
    assert set(one(labels).flatten().tolist()) <= {3, -100, 8, 5}


def test_strides_aliases_and_gradients_are_kept() -> None:
    base = torch.randn(6, 8)
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    expanded = torch.randn(4, 1).expand(4, 5)
    windows = torch.randn(10).unfold(0, 4, 1)
    learned = torch.randn(3, requires_grad=True)
    made = redrawn(base[1:3], base[2:, ::2], channels_last, expanded, windows, learned, learned)
    rows, columns, image, wide, sliding, first, second = made
    assert rows.untyped_storage()._cdata == columns.untyped_storage()._cdata
    rows[1] = 77
    assert columns[0, 0] == 77
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert wide.stride() == (1, 0) and not torch.equal(wide, expanded)
    assert sliding.stride() == (1, 1) and torch.equal(sliding, windows)
    assert first is second and first.requires_grad and first.is_leaf


def test_structures_are_kept_and_new() -> None:
    batch = Batch(torch.randn(3), "a")
    given_values = {"pair": Pair(torch.randn(2), 1), "list": [batch, (None, "x")]}
    (made,) = redrawn(given_values)
    assert isinstance(made["pair"], Pair) and made["pair"].right == 1
    assert made["list"][1] == (None, "x") and made["list"] is not given_values["list"]
    assert made["list"][0].name == "a" and not torch.equal(made["list"][0].data, batch.data)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(4), torch.randn(2)])
    (again,) = redrawn(packed)
    assert torch.equal(again.batch_sizes, packed.batch_sizes)
    assert not torch.equal(again.data, packed.data)


def test_model_outputs_of_transformers_are_kept() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    (made,) = redrawn(outputs.BaseModelOutput(last_hidden_state=torch.randn(2, 3)))
    assert type(made) is outputs.BaseModelOutput and made[0] is made.last_hidden_state


def test_parameters_and_state_are_passed_on() -> None:
    parameter, state = torch.nn.Parameter(torch.randn(3)), torch.randn(3)
    make = Redraw(Inputs((parameter, state)), kept={id(state)})
    assert all(now is then for now, then in zip(make().args, (parameter, state), strict=True))


def test_inputs_on_the_emulated_device_stay_there() -> None:
    from graphdoctor.device.emulated import EmulatedDevice

    with EmulatedDevice():
        given_values = torch.randn(4, 4, device="cuda")
        (made,) = redrawn(given_values)
        assert made.is_cuda and not torch.equal(made, given_values)


def test_get_inputs_is_called_again() -> None:
    count = iter(range(100))
    supplied = supply(Called(lambda: [torch.full((2, 2), float(next(count)))], what="get_inputs()"))
    assert [float(supplied.make().args[0][0, 0]) for _ in range(4)] == [0, 1, 2, 3]
    assert supplied.notes == ()


def test_a_seeding_get_inputs_is_noticed_and_helped() -> None:
    def get_inputs() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4), torch.randint(0, 50, (9,))]

    supplied = supply(Called(get_inputs, what="get_inputs()"))
    made = [tensors_of(supplied.make()) for _ in range(3)]
    assert torch.equal(made[0][0], get_inputs()[0])
    assert not torch.equal(made[0][0], made[1][0]) and not torch.equal(made[1][1], made[2][1])
    assert "get_inputs() gives the same values" in supplied.notes[0]


def test_a_generator_function_gives_its_batches_in_turn_and_is_called_again() -> None:
    calls = []

    def get_inputs() -> Iterator[tuple[torch.Tensor]]:
        calls.append(1)
        for value in (1.0, 2.0, 3.0):
            yield (torch.full((2,), value),)

    made = supply(Called(get_inputs, what="get_inputs()"))
    given = [float(made.make().args[0][0]) for _ in range(7)]
    assert given == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]
    assert len(calls) == 3
    assert made.notes == ()


def test_a_function_that_gives_no_batch_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"get_inputs\(\) gave no batch"):
        Called(lambda: iter(()), what="get_inputs()")()


def test_constant_inputs_are_not_called_seeded() -> None:
    assert supply(Called(lambda: [torch.ones(3)], what="get_inputs()")).notes == ()


def test_what_functions_for_inputs_may_return() -> None:
    x, y = torch.ones(1), torch.ones(2)
    assert to_inputs(x, what="f()") == Inputs((x,))
    assert to_inputs([x, y], what="f()").args == (x, y)
    assert to_inputs({"a": x}, what="f()") == Inputs((), {"a": x})
    assert to_inputs(((x,), {"b": y}), what="f()") == Inputs((x,), {"b": y})
    for odd in (None, 3, "text"):
        with pytest.raises(UsageError, match=r"f\(\) returned .*, but inputs are a list or tuple"):
            to_inputs(odd, what="f()")


def test_a_failing_get_inputs_is_the_users_error() -> None:
    def get_inputs() -> object:
        raise KeyError("missing.bin")

    with pytest.raises(UserCodeError, match=r"get_inputs\(\) failed: KeyError") as caught:
        supply(Called(get_inputs, what="get_inputs()"))
    assert "test_inputs.py" in caught.value.frames
    assert "redraw" not in caught.value.frames and "graphdoctor/target" not in caught.value.frames
