"""A file is parsed once, and the function, class or statement around a line is found in its tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.source.trees import (
    class_at,
    owner_of,
    scope_at,
    statements_of,
    tree_of,
)

SOURCE = """\
class Model:
    @staticmethod
    def forward(x):
        def inner(y):
            return y
        return inner(x)


last = Model()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_file_is_parsed_once(file: str) -> None:
    assert tree_of(file) is tree_of(file) is not None


@pytest.mark.parametrize("content", ["", "def (", "\0"])
def test_what_is_no_python_has_no_tree(content: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(content)
    assert tree_of(str(path)) is None
    assert scope_at(str(path), 1) is None and class_at(str(path), 1) is None


@pytest.mark.parametrize(
    ("line", "scope", "cls"),
    [(3, "forward", "Model"), (5, "inner", "Model"), (6, "forward", "Model"), (9, "", "")],
)
def test_the_innermost_scope_holds_a_line(file: str, line: int, scope: str, cls: str) -> None:
    assert getattr(scope_at(file, line), "name", "") == scope
    assert getattr(class_at(file, line), "name", "") == cls


def test_a_code_object_leads_to_its_function_past_decorators(file: str) -> None:
    names: dict[str, type] = {}
    module = compile(SOURCE, file, "exec")
    exec(module, names)
    owner = owner_of(vars(names["Model"])["forward"].__func__.__code__)
    assert owner is scope_at(file, 3) and owner_of(module) is tree_of(file)
    assert owner is not None
    assert [statement.lineno for statement in statements_of(owner)] == [4, 5, 6]  # type: ignore[arg-type]
