"""A path of the state is a value; its text is what people read."""

from __future__ import annotations

from typing import Any

import pytest

from graphdoctor.target.state.paths import By, StatePath
from graphdoctor.target.state.snapshot import named_values
from graphdoctor.target.state.walk import Walk

MODEL = StatePath.of("model")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (MODEL, "model"),
        (MODEL.attribute("layers").item(0), "model.layers[0]"),
        (MODEL.item("head"), "model.head"),
        (MODEL.item((1, "a")), "model[(1, 'a')]"),
        (StatePath.of("state").under(0, "model.weight").item("step"), "state[model.weight].step"),
        (MODEL.attribute("seen").measured("len"), "len(model.seen)"),
    ],
    ids=str,
)
def test_a_path_reads_as_code_does(path: StatePath, text: str) -> None:
    assert str(path) == text


def test_an_item_and_an_attribute_of_one_name_are_two_paths() -> None:
    item, attribute = MODEL.item("step"), MODEL.attribute("step")
    assert str(item) == str(attribute) and item != attribute
    assert item == StatePath(StatePath.of("model"), By.ITEM, "step")
    assert len({item, attribute, MODEL.item("step")}) == 2


def test_a_measure_has_the_path_of_what_it_measures() -> None:
    seen = MODEL.attribute("seen")
    assert seen.measured("contents").inner == seen and seen.inner is seen


def test_a_long_chain_is_no_recursion() -> None:
    chain: list[Any] = []
    for _ in range(20_000):
        chain = [chain]
    *_, last = Walk({"chain": chain})
    assert str(last.path) == "chain" + "[0]" * 20_000
    assert last.path == last.path.parent.item(0) and hash(last.path)  # type: ignore[union-attr]


def counter(start: int) -> Any:
    held = [start]
    return lambda: held[0]


def test_variables_of_one_name_have_a_number_each() -> None:
    first, second = counter(1), counter(2)
    values = named_values({"hooks": (first, second, first)})
    assert {path: value for path, value in values.items() if "held" in path} == {
        "len(held)": 1, "held[0]": 1, "len(held#2)": 1, "held#2[0]": 2,
    }  # fmt: skip
