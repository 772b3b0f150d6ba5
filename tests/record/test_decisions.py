"""What a line decides by a counter, also through variables that were computed from it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from graphdoctor.record.host.decisions import _MISSING, _item
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
ROWS = [0] * 693
SETTINGS = {"warm_up": "400-650"}


class Window:
    begin, end = 400.0, 650.0


def of_class(state: SimpleNamespace) -> bool:
    calls = state.calls
    return Window.begin <= calls < Window.end


def of_text(state: SimpleNamespace) -> bool:
    begin, end = map(int, SETTINGS["warm_up"].split("-"))
    calls = state.calls
    return begin <= calls < end


def of_each_epoch(state: SimpleNamespace) -> bool:
    steps = len(ROWS) // 3
    done = state.calls
    return done % steps == 0


def of_digits(state: SimpleNamespace) -> bool:
    name = f"{state.calls:06d}"
    return bool(1 if name.endswith("5000") else 0)


def of_bits(state: SimpleNamespace) -> bool:
    bits = state.bits
    return bits >> 300 != 0


def after_more(state: SimpleNamespace) -> bool:
    before = state.calls
    state.calls += 3
    return before == 5000 or before == 5001 or before == 5002 or before == 5003


def behind_many_numbers(state: SimpleNamespace) -> bool:
    calls = state.calls
    torch.zeros(2, 3).view(3, 2).repeat(4, 5)[6:7, 8:9].view(1, 10 - 9)[11 - 11 :, : 12 - 11]
    return calls == 5017


@pytest.mark.parametrize(
    "decides",
    [
        of_class,
        of_text,
        of_each_epoch,
        of_digits,
        of_bits,
        after_more,
        behind_many_numbers,
    ],
)
def test_a_variable_stands_for_the_counter_that_it_was_computed_from(
    decides: Callable[[SimpleNamespace], bool],
) -> None:
    state = SimpleNamespace(calls=0, bits=1)

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        state.bits <<= 1
        return LINEAR(x) * 2 if decides(state) else LINEAR(x)

    assert reported(step).verdict == "unknown"


def test_a_variable_that_only_logs_is_no_doubt() -> None:
    state = SimpleNamespace(calls=0)

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        calls = state.calls
        if calls % 100 == 0:
            print("step", calls, x.shape)
        return LINEAR(x)

    report = reported(step)
    assert report.verdict == "safe", report.reason


@pytest.mark.parametrize(
    ("value", "key", "item"),
    [
        ((5, 6), 1, 6), ((5, 6), 2, _MISSING), ((5, 6), -1, _MISSING), ((5, 6), "1", _MISSING),
        ([5, 6], 0, 5), ([5, 6], 2, _MISSING), ({2: 7}, 2, 7), ({2: 7}, 3, _MISSING),
        ("56", 0, _MISSING),
    ],
)  # fmt: skip
def test_an_item_is_one_that_is_there(value: object, key: object, item: object) -> None:
    assert _item(value, key) == item
