"""Whose a class is: the user's own where nothing says that it is a package's."""

from __future__ import annotations

import sys
from fractions import Fraction
from types import ModuleType

import pytest
import torch

from graphdoctor.target.state.variables import is_user_class


def of_module(name: object) -> type:
    return type("Made", (), {"__module__": name})


@pytest.mark.parametrize(
    ("cls", "is_users"),
    [
        (of_module(__name__), True),
        (of_module("a_cell_of_a_notebook"), True),
        (of_module("itertools"), False),
        (of_module("builtins"), False),
        (of_module(None), False),
        (Fraction, False),
        (torch.nn.Linear, False),
    ],
)
def test_a_class_is_the_users_unless_a_package_or_python_has_it(cls: type, is_users: bool) -> None:
    assert is_user_class(cls) is is_users


def test_what_is_typed_into_python_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert is_user_class(of_module("__main__"))
