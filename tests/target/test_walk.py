"""Everything that the roots can reach is visited once, by the path that people know it by."""

from __future__ import annotations

import functools
import io
import logging
import queue
import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.target.state.snapshot import named_tensors, named_values, snapshot
from graphdoctor.target.state.walk import Walk

_COUNT = 3


class Own:
    shared = 1

    def __init__(self) -> None:
        self.count = 2

    def method(self) -> int:
        return _COUNT


class Slotted:
    __slots__ = ("__hidden", "unset", "value")

    def __init__(self) -> None:
        self.value, self.__hidden = 5, 6


def paths(**roots: object) -> dict[str, object]:
    """Numbers and texts that are shown, by their paths."""
    plain = (int, str, float)
    return {
        str(path): value for path, value, shown in Walk(roots) if shown and isinstance(value, plain)
    }


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ({"a": 1, 2: 3, True: 4}, {"held.a": 1, "held[2]": 3, "held[True]": 4}),
        (OrderedDict(a=1), {"held.a": 1}),
        ([1, (2, [3])], {"held[0]": 1, "held[1][0]": 2, "held[1][1][0]": 3}),
        ({7}, {"held[0]": 7}),
        ([0] * 300, {}),
        (Own(), {"held.count": 2, "Own.shared": 1, "_COUNT": 3}),
        (Own().method, {"held.count": 2, "Own.shared": 1, "_COUNT": 3}),
        (Slotted(), {"held.value": 5, "held._Slotted__hidden": 6}),
        (functools.partial(max, 8, key=9), {"held.args[0]": 8, "held.keywords.key": 9}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_lies_in_an_object_has_the_path_that_code_has(
    held: object, found: dict[str, Any]
) -> None:
    beside_classes = {
        path: value
        for path, value in paths(held=held).items()
        if path in found or not path.startswith(("Slotted.", "Own."))
    }
    assert beside_classes == found


def test_a_functions_closure_and_globals_are_known_by_their_names() -> None:
    times = 2

    def function(by: int = 7) -> int:
        return times * _COUNT * by

    function.calls = 9  # type: ignore[attr-defined]
    found = paths(held=function)
    assert {"times": 2, "_COUNT": 3, "held.calls": 9}.items() <= found.items()
    every = {str(path): value for path, value, _ in Walk({"held": function})}
    assert every["held.defaults[0]"] == 7


def test_a_variable_that_is_not_set_yet_leads_nowhere() -> None:
    def function() -> int:
        return later

    assert "later" not in paths(held=function)
    later = 1
    assert paths(held=function)["later"] == 1


def test_what_is_reached_twice_is_visited_once() -> None:
    shared = [1]
    visits = [str(path) for path, value, _ in Walk({"a": shared, "b": [shared]}) if value is shared]
    assert visits == ["a"]


def test_objects_may_be_left_out_or_not_looked_into() -> None:
    inner = [1]
    assert "held[0][0]" in paths(held=[inner])
    roots = {"held": [inner]}
    assert [str(path) for path, *_ in Walk(roots, without=[inner])] == ["held"]
    assert [str(path) for path, *_ in Walk(roots, leaves={id(inner)})] == ["held", "held[0]"]


def test_an_optimizers_state_is_named_after_the_parameters_that_others_hold() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = named_tensors({"optimizer": optimizer, "model": model})
    assert "model.weight" in found and "model.weight.grad" in found
    assert "optimizer.state[model.weight].momentum_buffer" in found
    alone = named_tensors({"optimizer": optimizer})
    assert "optimizer.param_groups[0].params[0]" in alone


def test_a_module_that_is_a_key_is_named_by_its_path() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.calls = {model[0]: 1}
    assert "model.calls[model.0]" in {str(path) for path, *_ in Walk({"model": model})}


def test_a_modules_inner_parts_mean_nothing_to_a_reader() -> None:
    values = named_values({"model": nn.Sequential(nn.Dropout(0.25))})
    assert values["model.0.p"] == 0.25
    assert "model.training" in values
    assert not any("_hooks" in path or "_parameters" in path for path in values)


def test_pythons_own_objects_hold_no_state() -> None:
    logger = logging.Logger("of this test", level=30)
    assert paths(logger=logger) == {}


@pytest.mark.parametrize(("threads", "items"), [(1, {"waiting[0]": 8}), (2, {})])
def test_a_queues_items_are_state_where_no_other_thread_takes_them(
    threads: int, items: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = queue.Queue[int]()
    waiting.put(8)
    monkeypatch.setattr("threading.active_count", lambda: threads)
    found = paths(waiting=waiting)
    assert {path: value for path, value in found.items() if value == 8} == items


def test_an_attribute_of_a_tensor_is_its_state() -> None:
    tensor = torch.ones(2)
    tensor.scale = 3.0  # type: ignore[attr-defined]
    assert paths(held=tensor) == {"held.scale": 3.0}


def test_without_roots_the_search_path_is_put_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    whole, of_a_step = snapshot({}), snapshot({"held": [1]})
    before, held = list(sys.path), sys.path
    sys.path.append("/nowhere")
    of_a_step.restore()
    assert sys.path[-1] == "/nowhere"
    sys.path = [*before, "/elsewhere"]
    whole.restore()
    assert sys.path is held and sys.path == before


def test_a_running_iterator_is_a_limit_and_a_stream_is_none() -> None:
    limits = snapshot(
        {"held": {"items": iter([1]), "stream": io.BytesIO(b"a"), "list": [1]}}
    ).limits
    assert [limit.partition(" is a")[0] for limit in limits] == ["held.items"]
