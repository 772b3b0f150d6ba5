"""`make test-fast` runs the tests of what has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.touched import ROOT, TESTS, UNKNOWN_S, chosen, covering


def room(name: str) -> set[str]:
    return {path.relative_to(TESTS).as_posix() for path in (TESTS / name).rglob("test_*.py")}


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("graphdoctor/trace/arrays.py", room("trace")),  # no file is named after it
        ("graphdoctor/estimate/predict.py", {"estimate/test_predict.py"}),
        ("graphdoctor/rules/causes/align.py", {"rules/test_align.py"}),
        ("graphdoctor/pipeline/stages.py", room("pipeline")),
        ("graphdoctor/estimate/gpus/h200.toml", room("estimate")),
        ("tests/trace/test_lanes.py", {"trace/test_lanes.py"}),
        (
            "tests/support/mini_recorder.py",
            {"partition/test_fx.py", "partition/test_partition.py", "partition/test_needs.py"},
        ),
        (
            "tests/scenarios/state.py",
            {"pipeline/test_scenarios.py"},
        ),
        ("sample_models/gelu.py", {"pipeline/test_samples.py"}),
        ("benchmarks/truth/capture_facts.py", {"device/test_capture_facts.py"}),
        ("docs/checks.md", {"docs/test_docs.py", "docs/test_architecture.py"}),
        ("graphdoctor/__init__.py", {"docs/test_docs.py", "docs/test_architecture.py"}),
    ],
)
def test_nearest_tests_of_a_changed_file(file: str, tests: set[str]) -> None:
    near = covering(file)
    nearest = {path for path, distance in near.items() if distance == min(near.values())}
    assert {path.relative_to(TESTS).as_posix() for path in nearest} == tests


def test_tests_of_a_room_follow_those_named_after_the_module() -> None:
    near = covering("graphdoctor/estimate/predict.py")
    assert {path.relative_to(TESTS).as_posix() for path in near} == room("estimate")
    assert {path.name for path, distance in near.items() if distance == 0} == {"test_predict.py"}


def test_a_minute_is_filled_from_the_nearest_on() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    near = {a: 2, b: 0, c: 1, d: 1}
    seconds = {a: 1.0, b: 5.0, c: 5.0, d: 2.0}
    assert chosen(near, seconds, 13.0) == ([b, d, c, a], [])
    assert chosen(near, seconds, 12.0) == ([b, d, c], [a])
    assert chosen(near, seconds, 7.0) == ([b, d], [c, a])
    assert chosen(near, seconds, 1.0) == ([b], [d, c, a])  # what is nearest is run in any case
    assert chosen({}, {}, 50.0) == ([], [])


def test_a_file_that_was_never_run_takes_its_time_too() -> None:
    near = {Path(name): 1 for name in "abcd"}
    taken, left = chosen(near, {}, 3 * UNKNOWN_S)
    assert [path.name for path in left] == ["d"] and len(taken) == 3


def test_every_module_of_the_package_has_tests() -> None:
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / "graphdoctor").rglob("*.py"))
    assert not [module for module in modules if not covering(module)]
