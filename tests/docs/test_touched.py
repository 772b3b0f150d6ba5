"""`make test-fast` runs the tests of what has changed."""

from __future__ import annotations

import pytest

from tests.support.touched import ROOT, TESTS, covering


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("graphdoctor/trace/nesting.py", {"trace"}),  # no file is named after it
        ("graphdoctor/estimate/predict.py", {"estimate/test_predict.py"}),
        ("graphdoctor/rules/causes/align.py", {"rules/test_align.py"}),
        ("graphdoctor/pipeline.py", {"pipeline"}),
        ("graphdoctor/estimate/gpus/h200.toml", {"estimate"}),
        ("tests/trace/test_lanes.py", {"trace/test_lanes.py"}),
        ("tests/support/mini_recorder.py", {"partition/test_fx.py", "partition/test_partition.py"}),
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
def test_tests_of_a_changed_file(file: str, tests: set[str]) -> None:
    found = {path.relative_to(TESTS).as_posix() for path in covering(file)}
    assert found == tests


def test_every_module_of_the_package_has_tests() -> None:
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / "graphdoctor").rglob("*.py"))
    assert not [module for module in modules if not covering(module)]
