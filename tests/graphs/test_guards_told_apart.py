"""Values that are equal and not the same: a guard tells them apart wherever a forward may read them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphdoctor.graphs import tensor_layouts
from graphdoctor.graphs.calls.signature import Unwatchable, signature
from graphdoctor.graphs.guards import Guard
from graphdoctor.graphs.guards.guard import changed

Pair = collections.namedtuple("Pair", "a b")


class Word(str):
    pass


EQUAL: dict[str, tuple[Any, Any]] = {
    "int, bool": (1, True),
    "int, float": (1, 1.0),
    "int, of NumPy": (1, np.int64(1)),
    "zeros": (0.0, -0.0),
    "texts": ("a", Word("a")),
    "bytes": (b"a", bytearray(b"a")),
    "tuples": ((1, 2), Pair(1, 2)),
    "sizes": ((1, 2), torch.Size([1, 2])),
    "tuples of others": ((0.0, 1), (-0.0, 1)),
    "lists of others": ([1, 2], [True, 2]),
    "keys": ({1: 2}, {True: 2}),
    "keys that are tuples": ({(1,): 2}, {(True,): 2}),
    "orders": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "sets": ({1}, {True}),
    "frozen sets": (frozenset([1]), frozenset([True])),
    "ends": (collections.deque([1]), collections.deque([1], maxlen=3)),
    "number and tensor": (1, torch.tensor(1)),
    "tensors": (torch.tensor(1.0), torch.tensor(1.0)),
}


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), self.held, self.table, self.items


Put = Callable[[Holder, Any], None]
PLACES: dict[str, Put] = {
    "attribute": lambda m, v: setattr(m, "held", v),
    "attribute of torch's": lambda m, v: setattr(m.layer, "held", v),
    "value": lambda m, v: m.__dict__.setdefault("table", {}).update(x=v),
    "item": lambda m, v: m.__dict__.setdefault("items", [0]).__setitem__(0, v),
    "in a tuple": lambda m, v: setattr(m, "held", (3, v)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_are_told_apart(name: str, turned: bool, place: str) -> None:
    before, now = reversed(EQUAL[name]) if turned else EQUAL[name]
    module, put = Holder(), PLACES[place]
    put(module, before)
    guard = Guard({"m": module}, around=module)
    assert guard.is_same()
    put(module, now)
    assert not guard.is_same()
    assert guard.difference()


@pytest.mark.parametrize("before, now", [({1}, {True}), ([1], [1.0])])
def test_a_container_that_is_filled_anew_is_told_apart(before: Any, now: Any) -> None:
    module: Any = Holder()
    module.held = before
    guard = Guard({"m": module}, around=module)
    assert guard.is_same()
    before.clear()
    before.extend(now) if isinstance(before, list) else before.update(now)
    assert not guard.is_same()
    assert "held" in guard.difference()


@pytest.mark.parametrize("kind", [collections.Counter, collections.OrderedDict])
def test_a_value_in_a_kind_of_dictionary_is_watched(kind: Any) -> None:
    module: Any = Holder()
    module.held = kind(a=Holder)
    guard = Guard({"m": module}, around=module)
    assert guard.is_same()
    module.held["a"] = Word
    assert not guard.is_same()
    assert "held.a" in guard.difference()


def test_layers_in_another_order_are_another_model() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    guard = Guard({"m": model})
    model._modules = dict(reversed(model._modules.items()))
    assert not guard.is_same()
    assert guard.difference()


def test_an_equal_number_in_a_list_is_as_good_as_the_one_before() -> None:
    module: Any = Holder()
    module.held = [float("1.5")]
    guard = Guard({"m": module}, around=module)
    module.held[0] = float("1.50")
    assert guard.difference() == ""
    assert guard.is_same()


@pytest.mark.parametrize("name", [name for name in EQUAL if name != "tensors"])
def test_equal_arguments_are_told_apart_or_refused(name: str) -> None:
    keys = []
    for value in EQUAL[name]:
        try:
            keys.append(signature((value,), {})[0])
        except Unwatchable:
            return
    assert keys[0] != keys[1]


def test_calls_under_two_modes_in_turn_make_guards_once_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    make = tensor_layouts._guards
    monkeypatch.setattr(tensor_layouts, "_guards", lambda tensors: made.append(0) or make(tensors))
    model = nn.Linear(2, 2)
    with torch.no_grad():
        guard = Guard({"model": model})
    for _ in range(4):
        with torch.no_grad():
            assert guard.is_same()
        with torch.inference_mode():
            assert guard.is_same()
    assert len(made) == 2
    model.weight.data = torch.ones(1, 4)
    with torch.no_grad():
        assert not guard.is_same()
    with torch.inference_mode():
        assert not guard.is_same()


def test_values_are_shown_and_objects_are_not() -> None:
    assert changed("steps", [1], [2]) == "steps changed from [1] to [2]"
    assert (
        changed("hooks", [object()], [object()]) == "hooks is another object than the captured one"
    )
