"""What a function of the user's reads by name, which a guard has to watch, and nothing beside it."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphdoctor.graphs.guards import Guard
from graphdoctor.graphs.guards.code_reads import global_reads, library_reads
from tests.support import captured_models

scale = 2.0
unused = 3.0
settings = ModuleType("settings_of_a_notebook")
settings.rate = 0.5  # type: ignore[attr-defined]
settings.scale = 1.0  # type: ignore[attr-defined]


def of_itself(self: Any) -> float:
    """`scale` is an attribute here, and no global."""
    return float(self.scale)


def of_globals() -> float:
    return scale + (lambda: unused)()


def by_text() -> object:
    return globals()["scale"]


def of_a_module() -> float:
    return settings.rate  # type: ignore[attr-defined]


def names_read(function: Any) -> set[str]:
    return {name for _, name in global_reads(function)}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (of_itself, set()),
        (of_globals, {"scale", "unused"}),
        (by_text, {"scale"}),
        (of_a_module, {"settings", "rate"}),
    ],
)
def test_globals_and_what_users_modules_have_are_read_by_name(
    function: Any, names: set[str]
) -> None:
    assert names_read(function) == names


def test_a_guard_sees_a_users_module_change_and_no_global_that_is_only_an_attributes_name() -> None:
    class Scaled(nn.Module):
        scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale * settings.rate  # type: ignore[attr-defined]

    global scale
    guard = Guard({"model": Scaled()})
    scale = 5.0
    assert guard.is_same() and not guard.difference()
    settings.rate = 0.25  # type: ignore[attr-defined]
    assert not guard.is_same() and "rate" in guard.difference()
    scale, settings.rate = 2.0, 0.5  # type: ignore[attr-defined]


def test_functions_of_libraries_are_read_by_where_they_lie() -> None:
    inner = math

    def uses(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x) * inner.sqrt(2.0) + torch.cuda.device_count() + captured_models.rand(1)

    found = {path for path, _, _ in library_reads(uses)}
    assert {"torch.nn.functional.relu", "math.sqrt"} <= found
    assert not any(path.startswith(("torch.cuda.", "tests.")) for path in found)


def test_librarys_own_functions_are_asked_for_nothing() -> None:
    assert list(library_reads(F.gelu if hasattr(F.gelu, "__code__") else F.softmax)) == []
    assert list(library_reads(nn.Linear.forward)) == []
