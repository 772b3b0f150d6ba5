"""What a step in a row of them has changed, as far as the steps after it may decide by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.record.later.trials import _new, _whole


def test_an_attribute_that_is_new_is_a_change_and_an_item_is_told_by_its_lengths() -> None:
    before: Any = SimpleNamespace(values={"model.steps": 1, "len(model.seen)": 1})
    after: Any = SimpleNamespace(
        values={"model.steps": 2, "len(model.seen)": 2, "model.seen[1]": 5, "model.late": True}
    )
    assert set(_new(before, after)) == {"model.late"}
    assert set(_new(after, before)) == set()


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("len(model.seen)", "model.seen"),
        ("contents(model.seen)", "model.seen"),
        ("model.steps", "model.steps"),
    ],
)
def test_a_container_is_the_same_one_however_it_is_told(path: str, whole: str) -> None:
    assert _whole(path) == whole
