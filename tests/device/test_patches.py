"""Stand-ins are there for a block, and nowhere after it, whoever took them by name meanwhile."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import pytest

from graphdoctor.device.observe import patches
from graphdoctor.device.observe.patches import Patches
from tests.support.torch_versions import TELLS_DICT_WRITES


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType("a_module_of_the_user_s")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_name_taken_inside_is_the_original_s_again_in_every_block(mine: Any) -> None:
    floor = math.floor
    for _ in range(3):
        with Patches() as block:
            block.set(math, "floor", lambda x: 0)
            mine.floor = math.floor
            assert mine.floor(2.5) == 0
        assert math.floor is floor and mine.floor is floor


def test_a_name_taken_in_an_outer_block_before_an_inner_one_ends(mine: Any) -> None:
    floor, ceil = math.floor, math.ceil
    with Patches() as outer:
        outer.set(math, "floor", lambda x: 0)
        with Patches() as inner:
            inner.set(math, "ceil", lambda x: 1)
            mine.floor, mine.ceil = math.floor, math.ceil
        assert mine.ceil is ceil and mine.floor(2.5) == 0
    assert mine.floor is floor


@pytest.mark.skipif(not TELLS_DICT_WRITES, reason="this torch tells no versions of dictionaries")
def test_leaving_a_block_looks_through_what_was_written_meanwhile_alone(
    mine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Patches() as before:
        before.set(math, "floor", lambda x: 0)
    searched: list[str] = []

    def noted(wanted: Any, modules: list[ModuleType]) -> list[Any]:
        searched.extend(module.__name__ for module in modules)
        return []

    monkeypatch.setattr(patches, "_rename", noted)
    with Patches() as block:
        block.set(math, "floor", lambda x: 0)
        mine.other = 1
    assert {"math", mine.__name__} <= set(searched) and len(searched) < len(sys.modules) / 10
