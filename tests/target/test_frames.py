"""The nearest line of the user's is found, whatever lies between it and torch."""

from __future__ import annotations

import _thread
import collections
import functools
import importlib
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import typing_extensions

import graphdoctor
from graphdoctor.target.frames import Place, is_machinery, locate


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (torch.__file__, True),
        (torch.nn.functional.__file__, True),
        (random.__file__, True),
        (collections.__file__, True),
        (os.__file__, True),
        (typing_extensions.__file__, True),
        (graphdoctor.__file__, True),
        ("<frozen importlib._bootstrap>", True),
        (np.__file__, False),
        (__file__, False),
        ("model.py", False),
        ("/home/somebody/torch_models/net.py", False),
        ("<stdin>", False),
        ("<string>", False),
        ("<ipython-input-3-0a1b>", False),
    ],
)
def test_files_are_told_apart(file: str, expected: bool) -> None:
    assert is_machinery(file) is expected


def test_the_examples_of_rules_are_users_code() -> None:
    assert not is_machinery(importlib.import_module("graphdoctor.rules.host_read").__file__ or "")


def here() -> Place:
    return locate()


def test_the_nearest_line_and_its_callers_are_found() -> None:
    def inner() -> Place:
        return here()

    place = functools.reduce(lambda _, call: call(), [inner], None)
    assert place is not None and place.location is not None
    assert (place.location.file, place.location.function) == (__file__, "here")
    assert [each.function for each in place.stack[:3]] == ["inner", "<lambda>", _this_test()]
    assert not place.in_engine


def _this_test() -> str:
    return "test_the_nearest_line_and_its_callers_are_found"


def test_one_function_has_many_lines() -> None:
    first = locate()
    second = locate()
    assert first.location is not None and second.location is not None
    assert second.location.line == first.location.line + 1


def test_no_more_than_eight_lines_are_kept() -> None:
    def deeper(depth: int) -> Place:
        return locate() if depth == 0 else deeper(depth - 1)

    assert len(deeper(30).stack) == 7


def test_a_gradient_hook_is_users_code_inside_autograds_engine() -> None:
    places: list[Place] = []

    def hook(gradient: torch.Tensor) -> None:
        places.append(locate())

    x = torch.ones(2, requires_grad=True)
    x.register_hook(hook)
    (x * 2).sum().backward()
    (place,) = places
    assert place.location is not None and place.location.function == "hook"
    assert not place.in_engine


def test_the_engine_s_own_thread_leads_to_the_line_that_waits_for_it() -> None:
    """As a backward pass on a GPU: Python knows nothing of the thread, and its stack begins there."""
    found: list[Place] = []
    runs = _thread.allocate_lock()
    runs.acquire()

    def node_runs() -> None:
        found.append(locate())
        runs.release()

    def _engine_run_backward() -> None:
        _thread.start_new_thread(node_runs, ())
        runs.acquire()

    def backward() -> None:
        _engine_run_backward()

    backward()
    (place,) = found
    names = [each.function for each in (place.location, *place.stack) if each is not None]
    assert names[:3] == ["node_runs", "_engine_run_backward", "backward"]


def test_a_thread_of_the_program_is_not_the_engine_s() -> None:
    found: list[Place] = []

    def _engine_run_backward() -> None:
        thread = threading.Thread(target=lambda: found.append(locate()))
        thread.start()
        thread.join()

    _engine_run_backward()
    assert [each.function for each in found[0].stack] == []


def test_the_user_s_own_line_is_found_behind_any_number_of_library_frames(tmp_path) -> None:
    file = tmp_path / "site-packages" / "library.py"
    file.parent.mkdir()
    file.write_text("def deep(n, do):\n    return deep(n - 1, do) if n else do()\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    place = names["deep"](30, _locate_in_library(str(file)))
    assert place.location is not None and place.location.file == str(file)
    assert [frame.file for frame in place.stack[:-1]] == [str(file)] * 7
    this_test = "test_the_user_s_own_line_is_found_behind_any_number_of_library_frames"
    assert (place.stack[-1].file, place.stack[-1].function) == (__file__, this_test)


def _locate_in_library(file: str) -> Callable[[], Place]:
    """A function of that file which says where it is."""
    names: dict[str, Any] = {"locate": locate}
    exec(compile("def here():\n    return locate(2)", file, "exec"), names)
    return names["here"]


def test_the_text_of_exec_is_at_the_line_that_calls_it() -> None:
    """einx and einops write such functions. Nobody can open a file that is called <string>."""
    place = _locate_in_library("<string>")()
    assert place.location is not None and place.location.file == __file__
    names: dict[str, Any] = {"locate": locate}
    exec("def here():\n    return locate()", names)
    nested = names["here"]()
    assert nested.location is not None
    assert (nested.location.file, nested.location.line) == (__file__, place.location.line + 4)
    assert "<string>" not in {each.file for each in (*place.stack, *nested.stack)}


def test_a_graph_that_is_traced_in_each_step_is_at_the_line_that_traces_it() -> None:
    """What torch.fx generates has another name each time, so that no two steps would be alike."""
    places: list[Place] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        places.append(locate())
        return x

    graph = torch.fx.Graph()
    graph.output(graph.call_function(noted, (graph.placeholder("x"),)))
    module = torch.fx.GraphModule({}, graph)
    module(torch.ones(1))
    (place,) = places
    assert place.location is not None and place.location.function == "noted"
    files = {each.file for each in (place.location, *place.stack)}
    assert not any(file.startswith("<eval_with_key>") for file in files)
