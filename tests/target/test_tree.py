"""Leaves are found in every container and object, and a copy around other leaves changes nothing else."""

from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree

from graphdoctor.target import Inputs, from_object
from graphdoctor.target.inputs.fresh import Redraw
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.state.tree import Tree, input_leaves, leaves, map_inputs, map_leaves


class Pair(NamedTuple):
    left: Any
    right: Any


Plain = namedtuple("Plain", "left right")


@dataclass(frozen=True)
class Frozen:
    loss: Any
    name: str = "x"


@dataclass(frozen=True, slots=True)
class Slotted:
    loss: Any


@dataclass
class Grown:
    """Has a tensor that is no field."""

    loss: Any
    more: Any = field(init=False)

    def __post_init__(self) -> None:
        self.extra = self.loss


class Store(MutableMapping[str, Any]):
    """A mapping of the user's, whose plain copy shares its content."""

    def __init__(self, **items: Any) -> None:
        self._content = items
        self.writes = 0

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.writes += 1
        self._content[key] = value

    def __delitem__(self, key: str) -> None:
        del self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


GLOBAL: dict[str, Any] = {}


class Elsewhere(Store):
    """A mapping that holds nothing by itself."""

    def __init__(self, **items: Any) -> None:
        GLOBAL.clear()
        GLOBAL.update(items)

    @property
    def _content(self) -> Any:
        return GLOBAL


class Holder:
    def __init__(self, loss: Any) -> None:
        self.loss = loss


class Refusing(Holder):
    def __copy__(self) -> Any:
        raise TypeError("not this one")


class Closing(Holder):
    """Looks after something, which a copy would give back too early."""

    closed = 0

    def __del__(self) -> None:
        Closing.closed += 1


class Registered:
    """Known to torch's pytree, as the outputs of many libraries are."""

    def __init__(self, loss: Any, hidden: int) -> None:
        self.loss, self.hidden = loss, hidden


_pytree.register_pytree_node(
    Registered,
    lambda one: ([one.loss], one.hidden),
    lambda parts, hidden: Registered(*parts, hidden),
)


class Named(UserDict[str, Any]):
    """A mapping that torch's pytree knows, without a word on its keys."""


_pytree.register_pytree_node(
    Named,
    lambda one: (list(one.data.values()), list(one.data)),
    lambda parts, keys: Named(zip(keys, parts, strict=True)),
)


def test_a_mapping_that_is_registered_is_read_by_its_keys() -> None:
    assert list(leaves(Named(loss=torch.ones(1), hidden=2), "output")) == [
        "output.loss",
        "output.hidden",
    ]


class Doubling(dict[str, Any]):
    """Its items can be read as attributes."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


def doubling(loss: Any) -> Doubling:
    made = Doubling()
    made["loss"] = loss
    return made


NESTS: dict[str, Any] = {
    "tuple": lambda t: (t, 1),
    "list in a dict": lambda t: {"a": [1, t]},
    "named tuple": lambda t: Pair(1, (t,)),
    "collections' named tuple": lambda t: Plain(t, 1),
    "frozen dataclass": lambda t: Frozen([t]),
    "slotted dataclass": Slotted,
    "dataclass with a tensor that is no field": Grown,
    "deque": lambda t: deque([1, t], maxlen=3),
    "OrderedDict": lambda t: OrderedDict(b=t, a=1),
    "defaultdict": lambda t: defaultdict(list, a=t),
    "UserDict": lambda t: UserDict(a=1, loss=t),
    "mapping of the user's": lambda t: Store(a=1, loss=[t]),
    "object": lambda t: Holder([{"a": t}]),
    "object in an object": lambda t: Holder(Holder(t)),
    "namespace": lambda t: SimpleNamespace(loss=t, n=1),
    "registered node": lambda t: Registered((t,), 3),
    "dict with items as attributes": doubling,
    "what torch.max returns": lambda t: torch.max(t.view(1, -1), 1),
}


def model_output(tensor: torch.Tensor) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutputWithPast(last_hidden_state=tensor, hidden_states=(tensor,))


NESTS["transformers' ModelOutput"] = model_output


def tensors_in(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value, "output").values() if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("kind", NESTS)
def test_a_loss_is_found_wherever_it_is_and_trained_on(kind: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return NESTS[kind](self.layer(x).sum(0))

    model = Model()
    before = model.layer.weight.detach().clone()
    target = from_object(model, torch.ones(3, 2), mode="training")
    target.step(*target.fresh_inputs().args)
    assert not torch.equal(before, model.layer.weight)


@pytest.mark.parametrize("kind", NESTS)
def test_a_copy_has_the_same_make_and_shares_nothing_that_is_changed(kind: str) -> None:
    value = NESTS[kind](torch.arange(3.0, requires_grad=True) * 2)
    before = leaves(value, "output")
    made = map_leaves(lambda leaf: leaf * 0 if isinstance(leaf, torch.Tensor) else leaf, value)
    assert type(made) is type(value) and made is not value
    after = leaves(made, "output")
    assert list(after) == list(before) and tensors_in(made)
    for path, leaf in leaves(value, "output").items():
        assert leaf is before[path]
        if isinstance(leaf, torch.Tensor):
            assert after[path] is not leaf and not after[path].any()
        else:
            assert after[path] == leaf


def test_a_mapping_of_the_users_is_not_written_to() -> None:
    """copy.copy() of it shares the dictionary that holds its items."""
    given = Store(x=torch.ones(2), n=[1])
    (made,) = map_inputs(lambda leaf: 0, Inputs((given,))).args
    assert isinstance(made, Store) and dict(made) == {"x": 0, "n": [0]}
    assert torch.equal(given["x"], torch.ones(2)) and given["n"] == [1]
    assert (given.writes, made.writes) == (0, 0)
    made["x"] = 5
    assert torch.equal(given["x"], torch.ones(2))
    assert list(input_leaves(Inputs((given,)))) == ["inputs[0].x", "inputs[0].n[0]"]


@pytest.mark.parametrize("make", [Elsewhere, Refusing, Closing])
def test_what_cannot_be_copied_is_a_leaf(make: Any) -> None:
    given = make(loss=torch.ones(2))
    closed = Closing.closed
    (made,) = map_inputs(lambda leaf: leaf, Inputs((given,))).args
    assert made is given and input_leaves(Inputs((given,))) == {"inputs[0]": given}
    assert Closing.closed == closed
    assert torch.equal(GLOBAL["loss"] if make is Elsewhere else given.loss, torch.ones(2))


def test_items_that_are_attributes_too_are_one() -> None:
    made: Any = map_leaves(lambda leaf: torch.zeros(2), doubling(torch.ones(2)))
    assert made["loss"] is made.loss and not made.loss.any()


def test_a_packed_sequence_keeps_its_order_and_its_lengths() -> None:
    packed = pack_padded_sequence(
        torch.randn(5, 3, 4), torch.tensor([2, 5, 3]), enforce_sorted=False
    )
    redraw = Redraw(Inputs((packed,)))
    redraw()
    made = redraw().args[0]
    assert type(made) is type(packed) and not torch.equal(made.data, packed.data)
    for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(made, name), getattr(packed, name))
    assert [path.rpartition(".")[2] for path in leaves(packed, "p")] == [*packed._fields]


def test_what_is_held_twice_is_held_twice_in_the_copy() -> None:
    shared, tensor = [torch.ones(2)], torch.ones(3)
    made: Any = map_leaves(
        lambda leaf: leaf.clone(), {"a": shared, "b": (shared, tensor), "c": tensor}
    )
    assert made["a"] is made["b"][0] and made["a"] is not shared
    assert made["c"] is made["b"][1] and made["c"] is not tensor


def test_a_circle_ends_and_is_a_circle_in_the_copy() -> None:
    parent, child = Holder(torch.ones(2)), Holder(None)
    parent.child, child.parent = child, (parent,)  # type: ignore[attr-defined]
    made: Any = map_leaves(lambda t: t * 0 if isinstance(t, torch.Tensor) else t, [parent])
    assert made[0].child.parent[0] is made[0] is not parent and not made[0].loss.any()
    assert [*leaves([parent], "x")] == ["x[0].loss", "x[0].child.loss"]


def test_a_circle_that_cannot_be_made_anew_is_a_leaf() -> None:
    circle = Registered(None, 3)
    circle.loss = circle
    assert leaves(circle, "x") == {"x": circle}


def test_an_object_in_which_nothing_changes_stays_itself() -> None:
    """A cache that is passed to the step is its state: a copy would be written to in its place."""
    cache, batch = Holder([torch.ones(2)]), [torch.ones(3)]
    kept = {torch.ones(0).untyped_storage()._cdata, cache.loss[0].untyped_storage()._cdata}
    made = clone_inputs(Inputs((cache, batch)), kept=kept).args
    assert made[0] is cache and made[1] is not batch
    assert list(input_leaves(Inputs((cache,)))) == ["inputs[0].loss[0]"]


def test_objects_without_a_tensor_are_leaves() -> None:
    plain = Holder([1])
    assert leaves({"a": plain}, "x") == {"x.a": plain}
    held = Holder(torch.ones(2))
    assert Tree([held], into_objects=False).leaves("x") == {"x[0]": held}


@pytest.mark.parametrize("wrap", [lambda v: [v, 1], lambda v: (v,), Holder, Frozen])
def test_deep_nesting_is_neither_quadratic_nor_a_recursion(wrap: Any) -> None:
    def calls(depth: int) -> int:
        value: Any = torch.ones(2)
        for _ in range(depth):
            value = wrap(value)
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        made = Tree(value).map(lambda leaf: leaf * 0 if isinstance(leaf, torch.Tensor) else leaf)
        sys.setprofile(None)
        assert made is not value
        while not isinstance(value, torch.Tensor):  # lest their end be a recursion
            value, made = (
                (each.loss if hasattr(each, "loss") else each[0]) for each in (value, made)
            )
        assert value.all() and not made.any()
        return counted

    calls(10)
    assert calls(4_000) < 4.1 * calls(1_000)
