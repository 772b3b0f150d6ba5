"""Every object has one kind, which is the same for all that looks at the state, saves it or compares it."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import queue
import random
import threading
from types import CellType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from graphdoctor.target.state.kinds import FAMILIES, kind_of
from graphdoctor.target.state.kinds.callables import (
    Cell,
    Class,
    Function,
    Method,
    Partial,
    Reference,
)
from graphdoctor.target.state.kinds.containers import Deque, Dict, Fixed, List, Set, Tuple
from graphdoctor.target.state.kinds.kind import Kind
from graphdoctor.target.state.kinds.objects import (
    Inert,
    Module,
    Object,
    Optimizer,
    Queue,
    ScriptModule,
    Thread,
)
from graphdoctor.target.state.kinds.plain_values import (
    Array,
    EnumMember,
    Number,
    NumpyScalar,
    RandomGenerator,
    Scalar,
)
from graphdoctor.target.state.kinds.tensors import Tensor
from graphdoctor.target.state.paths import StatePath


class Mode(enum.Enum):
    ONE = 1


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int


class Items(list[int]):
    pass


class Liar:
    """Says that it is a module, as proxies do."""

    @property
    def __class__(self) -> Any:
        return nn.Module

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise AssertionError


MODULE = nn.Linear(1, 1)
EXAMPLES: list[tuple[object, type[Kind]]] = [
    (True, Scalar),
    (Level.LOW, Scalar),
    (Mode.ONE, EnumMember),
    (np.float32(1), NumpyScalar),
    (datetime.datetime(2020, 1, 1), Number),
    (MODULE.weight, Tensor),
    (MODULE, Module),
    (torch.jit.trace(nn.ReLU(), torch.ones(1)), ScriptModule),
    (torch.optim.SGD(MODULE.parameters()), Optimizer),
    (collections.Counter("a"), Dict),
    (Items(), List),
    (Point(1), Tuple),
    (collections.deque([1]), Deque),
    ({1}, Set),
    (frozenset(), Fixed),
    (lambda: None, Function),
    (MODULE.forward, Method),
    (CellType(1), Cell),
    (functools.partial(max), Partial),
    (Mode, Class),
    ([].append, Reference),
    (random.Random(), RandomGenerator),
    (torch.Generator(), RandomGenerator),
    (np.random.default_rng(), RandomGenerator),
    (np.zeros(1), Array),
    (collections, Inert),
    (threading.current_thread(), Thread),
    (queue.Queue(), Queue),
    (Liar(), Object),
]


@pytest.mark.parametrize(("value", "family"), EXAMPLES, ids=lambda one: type(one).__name__)
def test_an_object_belongs_to_the_family_of_its_true_type(
    value: object, family: type[Kind]
) -> None:
    assert type(kind_of(value)) is family


def test_each_family_of_the_registry_has_an_example() -> None:
    assert {family for _, family in EXAMPLES} == set(FAMILIES)


@pytest.mark.parametrize("made", [list, tuple, collections.deque])
def test_many_plain_values_are_told_apart(made: Any) -> None:
    values, others = made(range(100_000)), made([*range(99_999), 0])
    found = kind_of(values).digest(values)
    assert found == kind_of(values).digest(made(range(100_000)))
    assert found != kind_of(values).digest(others)


def test_an_item_is_written_where_the_list_still_has_it() -> None:
    steps, pair = [1, 2], (1, 2)
    for index in (1, 2):
        kind_of(steps).write(steps, StatePath.of("steps").item(index), 7)
    kind_of(pair).write(pair, StatePath.of("pair").item(1), 7)
    assert (steps, pair) == ([1, 7], (1, 2))
