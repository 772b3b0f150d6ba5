"""What a step in a row of them has changed, as far as the steps after it may decide by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from graphdoctor.record.later.trials import _new


def test_an_attribute_that_is_new_is_a_change_and_an_item_is_told_by_its_lengths() -> None:
    before: Any = SimpleNamespace(values={"model.steps": 1, "len(model.seen)": 1})
    after: Any = SimpleNamespace(
        values={"model.steps": 2, "len(model.seen)": 2, "model.seen[1]": 5, "model.late": True}
    )
    assert set(_new(before, after)) == {"model.late"}
    assert set(_new(after, before)) == set()
