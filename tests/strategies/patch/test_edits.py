"""Insertions become diffs that patch and git apply, whatever the file looks like."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from graphdoctor.strategies.patch.edits import (
    CannotEdit,
    Insertion,
    after_imports,
    changed_sources,
    folder_for,
    unified,
)

FILES = {
    "plain": "import torch\nmodel = 1\nprint(model)\n",
    "no newline at the end": "import torch\nmodel = 1",
    "windows": "import torch\r\nmodel = 1\r\nprint(model)\r\n",
    "tabs and umlauts": "if True:\n\tname = 'ä'\n\tmodel = 1\n\tprint(model)\n",
    "a form feed and a line separator": "import torch\n\x0cmodel = 1  # \u2028 one line\nprint(model)\n",
}


def line_of_model(text: str) -> int:
    return next(n for n, row in enumerate(text.split("\n"), start=1) if "model = 1" in row)


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize("tool", [["patch", "--binary", "-p1", "-s", "-i"], ["git", "apply"]])
def test_a_diff_applies_and_gives_the_changed_text(
    text: str, tool: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "a folder" / "train.py"
    file.parent.mkdir()
    file.write_bytes(text.encode())
    line = line_of_model(text)
    indent = "\t" if "\t" in text else ""
    sources = changed_sources([Insertion(str(file), line, f"{indent}model = 2")])
    after = sources[str(file)][1]
    assert [row.rstrip("\r") for row in after.split("\n")][line] == f"{indent}model = 2"
    diff = tmp_path / "fix.diff"
    diff.write_bytes(unified(sources, str(tmp_path)).encode())
    subprocess.run([*tool, str(diff)], cwd=tmp_path, check=True)
    assert file.read_bytes().decode() == after
    assert after.count("\r\n") in (0, after.count("\n"))


def test_text_goes_behind_an_argument_and_lines_below_it_in_one_diff(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("import os\nf(\n    é,\n)\n")
    column = len("    é".encode())
    edits = [Insertion(str(file), 3, ", k=1", column), Insertion(str(file), 1, "import sys")]
    with pytest.raises(KeyError):
        changed_sources(edits)["y.py"]
    assert changed_sources(edits)[str(file)][1] == "import os\nimport sys\nf(\n    é, k=1,\n)\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# coding: latin-1\nmodel = '\xe4'\n", "UTF-8"),
        (b"model = 1\rmodel = 2\n", "line endings"),
        (b"\xff\n", "UTF-8"),
    ],
)
def test_a_file_that_patch_would_not_keep_is_left_alone(
    content: bytes, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(content)
    with pytest.raises(CannotEdit, match=words):
        changed_sources([Insertion(str(file), 1, "y = 1")])


def test_a_change_that_is_no_python_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("f((1\n   ))\n")
    with pytest.raises(CannotEdit, match=r"x\.py would no longer be Python"):
        changed_sources([Insertion(str(file), 1, ", k=2", 4)])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""Doc."""\nfrom __future__ import annotations\n\nimport torch\nx = 1\nimport os\n', 4),
        ('"""Doc."""\nx = 1\n', 1),
        ("x = 1\n", 0),
    ],
)
def test_an_import_goes_below_the_first_imports(text: str, line: int) -> None:
    assert after_imports(text) == line


def test_a_diff_is_for_the_folder_that_holds_all_files() -> None:
    assert folder_for(["/a/b/c.py", "/a/b/d/e.py"], "/a/b") == "/a/b"
    assert folder_for(["/a/b/c.py", "/a/x/e.py"], "/a/b") == "/a"
