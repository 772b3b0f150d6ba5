"""The signature of a call: one graph serves two calls only where it is right for both."""

from __future__ import annotations

import copy
import enum
from collections import UserDict
from collections.abc import Iterator, MutableMapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.calls import CallForm, Nesting, Outputs, Unwatchable, form_of, signature
from graphdoctor.graphs.graphed_callable import copy_into
from graphdoctor.target.state.tree import map_leaves
from tests.support.captured_models import Scaled, assert_equal, on_device, rand, replayed
from tests.support.emulated import device as device
from tests.support.graphed_twins import data, twins

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


tensors = st.builds(
    lambda shape, dtype, flip, made: made(torch.zeros(shape, dtype=dtype)).permute(
        list(range(len(shape)))[:: -1 if flip else 1]
    ),
    shapes,
    st.sampled_from([torch.float32, torch.float64, torch.int64]),
    st.booleans(),
    st.sampled_from([lambda t: t, lambda t: t[..., None].expand(*t.shape, 2)[..., 0]]),
)


constants = st.sampled_from([None, True, False, 0, 1, 1.0, 0.0, -0.0, float("nan"), "a", ""])


class Pair(NamedTuple):
    first: Any
    second: Any


def _nested(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(parts, max_size=2),
        st.lists(parts, max_size=2).map(tuple),
        st.builds(Pair, parts, parts),
        st.dictionaries(st.sampled_from("xyz"), parts, max_size=2),
    )


values = st.recursive(st.one_of(tensors, constants), _nested, max_leaves=4)


arguments = st.lists(values, max_size=3).map(tuple)


named = st.dictionaries(st.sampled_from("xyz"), values, max_size=2)


@settings(max_examples=100)
@given(args=arguments, kwargs=named, others=arguments, other_kwargs=named, same=st.booleans())
def test_a_call_of_the_same_form_has_the_same_key(
    args: Any, kwargs: Any, others: Any, other_kwargs: Any, same: bool
) -> None:
    if same:
        others, other_kwargs = map_leaves(_alike, (args, kwargs))
    form = form_of(args, kwargs)
    if form is None:
        return
    key, expected = signature(others, other_kwargs)
    if not is_of(form, others, other_kwargs):
        assert not same
    else:
        found = form.tensors_of(others, other_kwargs)
        assert found is not None and key == signature(args, kwargs)[0]
        assert list(map(id, found)) == list(map(id, expected))


def is_of(form: CallForm, args: Any, kwargs: Any) -> bool:
    tensors = form.tensors_of(args, kwargs)
    assert not form.is_plain or kwargs or tensors is None or list(args) == list(tensors)
    try:
        return tensors is not None and form.check(*tensors)
    except TypeError:  # another number of tensors
        return False


def _alike(value: object) -> object:
    """Another tensor of the same make, or the same constant."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


class TestForms:
    @pytest.mark.parametrize(
        "args",
        [
            ([torch.zeros(1), {1: torch.zeros(1)}],),
            (torch.zeros(1, requires_grad=True),),
            (torch.zeros(1).to_sparse(), object()),
            (1, 2),
            (),
        ],
    )
    def test_what_has_none(self, args: Any) -> None:
        assert form_of(args, {}) is None

    def test_a_number_that_is_computed_anew_is_the_same(self) -> None:
        form = form_of((torch.zeros(1), 0.1, 1_000), {})
        assert form is not None
        assert is_of(form, (torch.ones(1), float("0.1"), int("1000")), {})
        assert not is_of(form, (torch.ones(1), 0.1, 1_000.0), {})

    def test_one_tensor_twice_is_no_form_and_of_none(self) -> None:
        x, y = torch.zeros(2), torch.zeros(2)
        assert form_of((x, x), {}) is None
        form = form_of((x, y), {})
        assert form is not None
        assert is_of(form, (y, x), {}) and not is_of(form, (x, x), {})

    def test_emulated_devices_are_told_apart(self, device: EmulatedDevice) -> None:
        form = form_of((torch.zeros(2, device="cuda"),), {})
        assert form is not None
        assert is_of(form, (torch.zeros(2, device="cuda"),), {})
        assert not is_of(form, (torch.zeros(2),), {})

    def test_a_tensor_that_wants_gradients_is_no_known_form(self) -> None:
        form = form_of((torch.zeros(2),), {})
        wanting = torch.zeros(2, requires_grad=True)
        assert form is not None and not is_of(form, (wanting,), {})

    def test_gradients_wanted_after_the_same_call_without(self, device: EmulatedDevice) -> None:
        model: Any = on_device(Scaled()).requires_grad_(False)
        fast = graphdoctor.capture(model, rand(5, 4))
        wanting = rand(5, 4).requires_grad_()
        for _ in range(2):
            assert_equal(fast, model, wanting)
            assert fast(wanting).requires_grad
        assert replayed(fast) == 2

    def test_several_forms_of_one_key(self, device: EmulatedDevice) -> None:
        model = on_device(Scaled())
        fast: Any = graphdoctor.capture(model, rand(5, 4))
        for _ in range(3):
            assert_equal(fast, model, rand(5, 4))
            with torch.inference_mode():
                given = rand(5, 4)
                assert torch.equal(fast(given), model(given))
        assert replayed(fast) == 6 and not fast.fallbacks

    def test_a_released_model_is_eager(self, device: EmulatedDevice) -> None:
        model = on_device(Scaled())
        fast: Any = graphdoctor.capture(model, rand(5, 4))
        assert_equal(fast, model, rand(5, 4))
        fast.release()
        assert_equal(fast, model, rand(5, 4))
        assert fast.fallbacks["it was released"] == 1


def test_inputs_of_several_dtypes_are_all_copied() -> None:
    kinds = [torch.float32, torch.int64, torch.float32, torch.bool, torch.int64]
    static = [torch.zeros(3, dtype=kind) for kind in kinds]
    fresh = [torch.arange(place, place + 3).to(kind) for place, kind in enumerate(kinds)]
    copy_into(static)(tuple(fresh))
    assert all(map(torch.equal, static, fresh))


class Items(MutableMapping[str, Any]):
    """Keeps its items in a dictionary, which copy.copy would share with its copy."""

    def __init__(self, items: dict[str, Any], scale: float = 1.0) -> None:
        self.items_inside, self.scale = items, scale

    def __getitem__(self, key: str) -> Any:
        return self.items_inside[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_inside[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_inside[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_inside)

    def __len__(self) -> int:
        return len(self.items_inside)


class Copying(Items):
    """It says itself how it is copied."""

    def __copy__(self) -> Copying:
        return type(self)(dict(self.items_inside), self.scale)


class Named(dict[str, Any]):
    """A dictionary with an attribute that is no item."""

    scale = 1.0


class Kind(enum.Flag):
    A = enum.auto()
    B = enum.auto()


def key_of(value: Any) -> object:
    return signature((value,), {})[0]


def named_with(scale: Any) -> Named:
    made = Named(x=torch.zeros(2))
    made.scale = scale
    return made


class TestSignature:
    def test_a_mapping_that_cannot_be_made_anew_is_refused(self) -> None:
        for value in (Copying({"x": torch.zeros(2)}), MappingProxyType({"x": torch.zeros(2)})):
            with pytest.raises(Unwatchable, match="whose contents may change"):
                key_of(value)

    def test_a_users_mapping_is_known_by_all_that_it_keeps(self) -> None:
        one = key_of(Items({"x": torch.zeros(2)}, 2.0))
        assert one == key_of(Items({"x": torch.ones(2)}, 2.0))
        assert one != key_of(Items({"x": torch.ones(2)}, 3.0))
        assert one != key_of(Items({"x": torch.ones(3)}, 2.0))

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (named_with(1.0), named_with(2.0)),
            (UserDict(x=1), UserDict(x=2)),
            ({1: 0}, {True: 0}),
            (0j, complex(0.0, -0.0)),
            (float("nan"), 0.0),
            (Kind.A, Kind.A | Kind.B),
            ((1, 2), [1, 2]),
        ],
    )
    def test_what_a_forward_could_tell_apart_has_another_key(self, one: Any, other: Any) -> None:
        assert key_of(one) == key_of(copy.copy(one)) and key_of(one) != key_of(other)

    def test_a_nan_equals_itself(self) -> None:
        assert key_of(float("nan")) == key_of(float("nan"))
        assert key_of(complex("nanj")) == key_of(complex("nanj"))

    def test_a_tensor_that_hides_is_refused(self) -> None:
        holder = named_with(object())
        with pytest.raises(Unwatchable, match="an input is a object"):
            key_of(holder)
        with pytest.raises(Unwatchable, match="a tensor as a key"):
            key_of({torch.zeros(1): 1})

    def test_a_tensor_beside_the_items_is_one_of_the_inputs(self) -> None:
        x = torch.zeros(2)
        assert signature((named_with(x),), {})[1][1] is x


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layer(batch["x"]) * batch.scale


class TestMappings:
    def test_a_users_mapping_is_served_by_a_graph_that_watches_all_of_it(
        self, device: EmulatedDevice
    ) -> None:
        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Scaling()

            def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
                return self.inner(Items({"x": x}, scale))

        with twins(Outer, [lambda side: side.look(data(2, 4))], paths=["inner"]) as pair:
            assert pair.made.paths == ("inner",), pair.made.left_out
            pair.both(lambda side: side.look(data(2, 4, seed=1)))
            assert pair.made.replays == 1
            pair.both(lambda side: side.look(data(2, 4, seed=2), scale=3.0))
            assert pair.made.replays == 1

    def test_one_that_says_how_it_is_copied_stays_the_callers(self, device: EmulatedDevice) -> None:
        model = on_device(Scaling())
        batch = Copying({"x": rand(2, 4)}, 2.0)
        given = batch["x"]
        fast: Any = graphdoctor.capture(model, batch)
        assert fast.plan.how == "eager" and "an input is a Copying" in fast.explain()
        assert batch["x"] is given
        assert_equal(fast, model, batch)

    def test_an_attribute_of_a_dictionary_is_watched(self, device: EmulatedDevice) -> None:
        model, batch = on_device(Scaling()), Named(x=rand(2, 4))
        batch.scale = 2.0
        fast: Any = graphdoctor.capture(model, batch)
        assert_equal(fast, model, batch)
        assert replayed(fast) == 1
        batch.scale = 5.0
        assert_equal(fast, model, batch)
        assert replayed(fast) == 1


class Answer:
    """No dataclass; it carries a tensor all the same."""

    def __init__(self, y: torch.Tensor) -> None:
        self.y, self.name = y, "answer"


class TestOutputs:
    def test_an_object_that_carries_tensors_is_made_anew(self, device: EmulatedDevice) -> None:
        class Model(nn.Module):
            def forward(self, x: torch.Tensor) -> Answer:
                return Answer(x * 2)

        fast: Any = graphdoctor.capture(Model(), rand(3))
        one, two = rand(3), rand(3)
        with torch.no_grad():
            answers = fast(one), fast(two)
        assert replayed(fast) == 2 and [type(each) for each in answers] == [Answer, Answer]
        assert torch.equal(answers[0].y, one * 2) and torch.equal(answers[1].y, two * 2)
        assert answers[0].name == "answer"

    def test_a_tensor_in_an_attribute_of_an_output_is_renewed_with_the_items(self) -> None:
        nesting = Nesting(named_with(torch.zeros(2)))
        fresh = [torch.ones(2), torch.full((2,), 2.0)]
        made: Any = nesting.filled(fresh)
        assert type(made) is Named and made["x"] is fresh[0] and made.scale is fresh[1]

    def test_small_copies_share_one_aligned_allocation_and_no_write(self) -> None:
        made = [torch.rand(3, 4).t(), torch.rand(130), torch.rand(())]
        found = Outputs(Nesting(made), made, clones=True).build(())
        assert all(map(torch.equal, found, made))
        assert [each.stride() for each in found] == [each.stride() for each in made]
        assert len({each.untyped_storage().data_ptr() for each in found}) == 1
        begin = found[0].data_ptr()
        assert [each.data_ptr() - begin for each in found] == [0, 512, 512 + 1_024]
        scale = torch.ones((), requires_grad=True)
        product = scale * found[1]
        found[2].add_(1)  # which is none to what autograd has saved
        product.sum().backward()
        assert scale.grad is not None and torch.equal(found[1], made[1])

    @pytest.mark.parametrize("large", [torch.rand(1_025), torch.arange(3)])
    def test_a_copy_that_is_kept_keeps_no_large_one(self, large: torch.Tensor) -> None:
        made = [torch.rand(()), large]
        loss, _ = Outputs(Nesting(tuple(made)), made, clones=True).build(())
        assert loss.untyped_storage().nbytes() == 4

    def test_tensors_that_share_memory_share_it_in_copies(self) -> None:
        base = torch.arange(6.0).view(2, 3)
        made = [base, base.t(), base[:, ::2]]
        build = Outputs(Nesting(tuple(made)), made, clones=True).build
        found = build(())
        assert [t.stride() for t in found] == [t.stride() for t in made]
        assert found[0].data_ptr() == found[1].data_ptr() != base.data_ptr()
