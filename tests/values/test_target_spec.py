"""What a person calls a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.values.errors import UsageError
from graphdoctor.values.target_spec import check_spec, is_file, split


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("net.py", ("net.py", None)),
        ("net.py:Net", ("net.py", "Net")),
        ("net.py:Net.step", ("net.py", "Net.step")),
        ("pkg.module:step", ("pkg.module", "step")),
        ("a:b/net.py", ("a:b/net.py", None)),
    ],
)
def test_a_name_follows_the_last_colon(spec: str, parts: tuple[str, str | None]) -> None:
    assert split(spec) == parts


def test_a_file_that_is_there_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / "net:Net"
    file.touch()
    assert split(str(file)) == (str(file), None)
    assert is_file(str(file))


@pytest.mark.parametrize(
    ("spec", "hint"), [("net", "there is no file net"), ("net:1x", "net:1x names")]
)
def test_what_names_no_target_is_refused_with_what_would(spec: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint) as refused:
        split(spec)
    assert ("there is no file" in str(refused.value)) == (":" not in spec)


@pytest.mark.parametrize(
    ("where", "file"), [("net.py", True), ("folder/net", True), ("pkg.module", False)]
)
def test_what_is_no_dotted_name_is_meant_as_a_file(where: str, file: bool) -> None:
    assert is_file(where) is file


def test_a_file_is_looked_for_before_anything_is_imported(tmp_path: Path) -> None:
    notebook, there = tmp_path / "net.ipynb", tmp_path / "net.py"
    notebook.touch()
    there.touch()
    check_spec(str(there))
    check_spec("no.such.package:net")
    for spec, problem in (
        (str(notebook), "is a notebook"),
        (str(tmp_path), "is a folder"),
        (str(tmp_path / "gone.ipynb:Net"), "does not exist"),
        (str(tmp_path / "gone.py"), "does not exist"),
    ):
        with pytest.raises(UsageError, match=problem):
            check_spec(spec)
