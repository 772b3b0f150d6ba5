"""What stands for a value where two moments are compared: it differs where the state does."""

from __future__ import annotations

import datetime
import enum
import io
from collections import deque
from typing import Any

import numpy as np
import pytest

from graphdoctor.target.state.attributes import LONG, is_array, is_data
from graphdoctor.target.state.kinds import digest
from graphdoctor.target.state.paths import By, Numbered, StatePath


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    ("before", "now", "path"),
    [
        (1, 2, "held"),
        (None, 1, "held"),
        (Mode.ONE, Mode.TWO, "held"),
        (datetime.timedelta(1), datetime.timedelta(2), "held"),
        ([1], [1, 2], "len(held)"),
        ({1}, {1, 2}, "len(held)"),
        ({1: 2}, {}, "len(held)"),
        (deque([1]), deque([1, 2]), "len(held)"),
        ([0] * 300, [0] * 299 + [1], "contents(held)"),
        ((0,) * 300, (0,) * 301, "contents(held)"),
        (np.int64(1), np.int64(2), "held"),
        (np.float32(1), np.float64(1), "held"),
        (np.zeros(3), np.array([0, 0, 1.0]), "contents(held)"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "contents(held)"),
        (np.zeros(4)[::2], np.ones(4)[::2], "contents(held)"),
        (np.zeros(2, np.int32), np.zeros(2, np.float32), "contents(held)"),
    ],
)
def test_another_value_has_another_digest(before: Any, now: Any, path: str) -> None:
    then, later = digest(before), digest(now)
    assert then is not None and later is not None
    held = StatePath.of("held")
    assert (str(then.path_of(held)), str(later.path_of(held))) == (path, path)
    assert then.value != later.value
    assert digest(before) == then


STEPS = StatePath.of("model").attribute("steps")


@pytest.mark.parametrize(
    ("path", "text", "whole", "own"),
    [
        (STEPS, "model.steps", "model.steps", "steps"),
        (STEPS.measured("len"), "len(model.steps)", "model.steps", "steps"),
        (STEPS.measured("contents"), "contents(model.steps)", "model.steps", "steps"),
        (STEPS.item(3), "model.steps[3]", "model.steps[3]", "steps"),
        (STEPS.item("a.b"), "model.steps.a.b", "model.steps.a.b", "a.b"),
        (
            STEPS.under(0, "model.weight"),
            "model.steps[model.weight]",
            "model.steps[model.weight]",
            "steps",
        ),
        (
            StatePath(None, By.NAME, Numbered("count", 2)).item(0),
            "count#2[0]",
            "count#2[0]",
            "count",
        ),
    ],
)
def test_a_path_knows_the_value_that_it_measures_and_what_code_calls_it(
    path: StatePath, text: str, whole: str, own: str
) -> None:
    assert (str(path), str(path.inner), path.own_name) == (text, whole, own)


def test_what_only_leads_on_has_nothing_that_stands_for_it() -> None:
    for value in (object(), Mode, io.BytesIO(b"a"), bytearray(1)):
        assert digest(value) is None


def test_only_many_plain_values_are_data() -> None:
    assert is_data([0] * (LONG + 1))
    assert not is_data([0] * LONG)
    assert not is_data([*[0] * LONG, object()])


def test_arrays_are_known() -> None:
    assert is_array(np.zeros(1)) and not is_array([0.0])
