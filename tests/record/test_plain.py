"""Which values run no code of the user's when they are printed, compared, iterated, or read from."""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from typing import Any

import pytest
import torch

from graphdoctor.record.host.plain import has_own_access, is_of_user, is_plain


class Own:
    pass


class Text(str):
    pass


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    pass


class Plain(enum.Enum):
    ONE = 1

    def doubled(self) -> int:
        return 2 * self.value


class Shouting(enum.Enum):
    ONE = 1

    def __str__(self) -> str:
        return "ONE!"


def function() -> None:
    pass


@functools.wraps(math.sqrt)
def wrapped(value: float) -> float:
    return value


EXCEPTION = ValueError("of Python's own")
HOLDING = ValueError("with something of the user's")
HOLDING.held = Own()  # type: ignore[attr-defined]


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "value",
    [
        1, "text", None, b"", 2j, math, math.sqrt, function, torch.Tensor, int, type,
        [1, (2, {3})], {"a": [1]}, OrderedDict(a=1), Counter("ab"), deque([1]), frozenset([1]),
        [0] * 200, nested(3), Plain.ONE, Fraction(1, 2), torch.ones(2), torch.float32, EXCEPTION, Own,
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)  # fmt: skip
def test_values_of_python_and_torch_are_plain(value: object) -> None:
    assert is_plain(value)


@pytest.mark.parametrize(
    "value",
    [
        Own(), Text("a"), [Own()], {"a": Own()}, {Text("a"): 1}, ({1: [Own()]},), [0] * 201, nested(4), HOLDING,
        defaultdict(int), itertools.count(), iter([1]), functools.partial(function), torch.nn.Linear(1, 1),
        Shouting.ONE, OfMeta,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_the_users_or_changes_when_it_is_asked_is_not(value: object) -> None:
    assert not is_plain(value)


@pytest.mark.parametrize(
    ("value", "is_users"),
    [
        (function, True),
        (functools.partial(function), True),
        (functools.partial(math.sqrt, 2.0), False),
        (Own().__init__, False),  # which is object's
        (wrapped, True),
        (Own, True),
        (Own(), True),
        (Text("a"), True),
        (1, False),
        (torch.nn.functional.relu, False),
        (torch.ones(1), False),
        (math.sqrt, False),
    ],
)
def test_who_wrote_it_is_told_by_its_code_and_its_classes(value: object, is_users: bool) -> None:
    assert is_of_user(value) is is_users


class Watched:
    """Reads of some names run code."""

    kept = 1
    method = function

    @property
    def computed(self) -> int:
        return 1


class Inheriting(Watched):
    pass


class Answering:
    def __getattr__(self, name: str) -> int:
        return 1


class Slotted:
    __slots__ = ("held",)


@pytest.mark.parametrize(
    ("value", "name", "runs_code"),
    [
        (Watched(), "computed", True),
        (Inheriting(), "computed", True),
        (Inheriting(), "kept", False),
        (Watched(), "kept", False),
        (Watched(), "method", False),
        (Watched(), "missing", False),
        (Answering(), "anything", True),
        (Slotted(), "held", True),
        (Watched, "computed", False),
        (math, "pi", False),
        (torch.nn.Linear(1, 1), "weight", False),
    ],
)
def test_reading_an_attribute_runs_code_where_a_class_says_so(
    value: object, name: str, runs_code: bool
) -> None:
    assert has_own_access(value, name) is runs_code
