"""What a function uses from outside, and whose a class is: the user's own where nothing says that it is a package's."""

from __future__ import annotations

import sys
from fractions import Fraction
from types import ModuleType

import pytest
import torch

from graphdoctor.target.state.variables import attributes_read, global_names, is_user_class

SOURCE = """
def one_step(batch):
    import helpers

    def scaled():
        return scale

    helpers.count += 1
    helpers.show(batch.data)
    optimizer.step()
    batch.weight = getattr(batch, "bias")
"""


def test_a_global_of_the_name_of_an_attribute_is_another_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helpers = ModuleType("helpers")
    vars(helpers).update(count=0, show=print, unused=1)
    monkeypatch.setitem(sys.modules, "helpers", helpers)
    namespace = dict.fromkeys(
        ("optimizer", "scale", "step", "count", "data", "weight", "bias", "unused")
    )
    exec(SOURCE, namespace)
    found = list(global_names(namespace["one_step"]))
    (own, names), (of_helpers, in_helpers) = found
    assert own is namespace and of_helpers is vars(helpers)
    assert {*names} & {*namespace} == {"optimizer", "scale", "bias"}
    assert {*in_helpers} == {"count", "show"}


def test_attributes_are_listed_of_variables_that_have_no_other_use() -> None:
    source = "def step(x):\n    return x * env.scale + env.shift, passed.a, use(passed), called.b, called.run()"
    namespace: dict[str, object] = {}
    exec(source, namespace)
    assert attributes_read(namespace["step"]) == {"env": {"scale", "shift"}}  # type: ignore[arg-type]


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
