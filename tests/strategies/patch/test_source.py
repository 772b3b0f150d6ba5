"""Changes of statements become diffs that patch and git apply, whatever the file looks like."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from graphdoctor.strategies.patch.source import (
    Above,
    Argument,
    At,
    Below,
    CannotEdit,
    Change,
    Decorator,
    Import,
    Instead,
    Text,
    at_lines_before,
    changed_sources,
    folder_for,
    import_of_torch,
    unified,
)

FILES = {
    "plain": "import torch\nmodel = 1\nprint(model)\n",
    "no newline at the end": "import torch\nmodel = 1",
    "windows": "import torch\r\nmodel = 1\r\nprint(model)\r\n",
    "tabs and umlauts": "if True:\n\tname = 'ä'\n\tmodel = 1\n\tprint(model)\n",
    "a line separator": "import torch\nmodel = 1  # \u2028 one line\nprint(model)\n",
    "behind a semicolon": "import torch; name = 'ä'; model = 1\nprint(model)\n",
    "before a semicolon": "import torch\nmodel = 1; print(model)  # shown\n",
}


def at(file: Path, code: str, *, end: bool = False) -> At:
    """Where the statement or the call with this source is."""
    text = file.read_bytes().decode()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.stmt, ast.Call)) and ast.get_source_segment(text, node) == code:
            if end:
                return At(str(file), node.end_lineno or 0, node.end_col_offset or 0)
            return At(str(file), node.lineno, node.col_offset)
    raise AssertionError(code)


def changed(file: Path, *changes: Change) -> str:
    return changed_sources(changes)[str(file)][1]


def test_a_sentence_on_the_changed_program_names_the_users_lines() -> None:
    before = "import torch\nfor x in data:\n    loss = f(x)\n    y = 1\n"
    after = (
        "import torch\nimport graphdoctor\n@graphdoctor.capture\ndef step(x):\n    loss = f(x)\n    return loss\n"
        "for x in data:\n    loss = step(x)\n    y = 1\n"
    )
    sources = {"/a/train.py": (before, after)}
    said = at_lines_before("GD104 (train.py:5), train.py:9, train.py:6, my_train.py:9", sources)
    assert said == "GD104 (train.py:3), train.py:4, line 6 of the changed train.py, my_train.py:9"


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize("tool", [["patch", "--binary", "-p1", "-s", "-i"], ["git", "apply"]])
def test_a_diff_applies_and_gives_the_changed_text(
    text: str, tool: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "a folder" / "train.py"
    file.parent.mkdir()
    file.write_bytes(text.encode())
    sources = changed_sources([Below(at(file, "model = 1"), "model = 2")])
    after = sources[str(file)][1]
    inserted = after.replace("\r\n", "\n").replace("; ", "\n").replace("\t", "").split("\n")
    first = next(n for n, row in enumerate(inserted) if row.startswith("model = 1"))
    assert inserted[first + 1] == "model = 2"
    diff = tmp_path / "fix.diff"
    diff.write_bytes(unified(sources, str(tmp_path)).encode())
    subprocess.run([*tool, str(diff)], cwd=tmp_path, check=True)
    assert file.read_bytes().decode() == after
    assert after.count("\r\n") in (0, after.count("\n"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = 0; model = 1; y = model\n", "x = 0; model = 1; model = 2; y = model\n"),
        ("x = 0; model = 1  # made\n", "x = 0; model = 1\nmodel = 2  # made\n"),
        ("if x: y = 0; model = 1\n", None),
    ],
)
def test_a_statement_between_semicolons_gets_a_neighbour(
    line: str, expected: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "x.py"
    file.write_text(line)
    edit = Below(at(file, "model = 1"), "model = 2")
    if expected is None:
        with pytest.raises(CannotEdit, match=r"x\.py has no single statement at line 1"):
            changed(file, edit)
    else:
        assert changed(file, edit) == expected


def test_arguments_end_as_those_before_them_and_changes_do_not_move_each_other(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.py"
    file.write_text("import os\nf(\n    é,\n)\ng(a=1)\nh()\n")
    calls = [("f(\n    é,\n)", "k=1"), ("g(a=1)", "k=2"), ("h()", "k=3")]
    edits = [Argument(at(file, call, end=True), code) for call, code in calls]
    text = changed(file, *edits, Import(str(file), "import sys"), Import(str(file), "import os"))
    assert text == "import os\nimport sys\nf(\n    é, k=1,\n)\ng(a=1, k=2)\nh(k=3)\n"


def test_statements_become_a_call_and_a_function_stands_above_their_loop(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "a = 1\n# all rounds\nfor i in x:\n    b = i\n    c = b  # this\n    d = c; e = d\n"
    )
    text = changed(
        file,
        Above(
            at(file, "for i in x:\n    b = i\n    c = b  # this\n    d = c; e = d"), "def f(): pass"
        ),
        Instead(at(file, "b = i"), at(file, "d = c"), "d = f(i)"),
        Import(str(file), "import g"),
    )
    assert text == (
        "import g\na = 1\n\n\ndef f(): pass\n\n\n# all rounds\nfor i in x:\n    d = f(i)\n    e = d\n"
    )


def test_a_function_stands_below_the_heading_of_the_one_that_it_stands_above(
    tmp_path: Path,
) -> None:
    """pytorch/examples, gat: `### TRAIN AND TEST FUNCTIONS ###`, an empty line, and the first of them."""
    file = tmp_path / "x.py"
    file.write_text("a = 1\n\n# ----\n# Training\n\n# all rounds\ndef g():\n    pass\n")
    text = changed(file, Above(at(file, "def g():\n    pass"), "def f(): pass"))
    assert text == (
        "a = 1\n\n# ----\n# Training\n\ndef f(): pass\n\n\n# all rounds\ndef g():\n    pass\n"
    )


def test_what_comes_instead_has_the_empty_lines_above_it_that_were_there(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("a = 1\n\n\ndef f():\n    pass\n\nb = 2\n")
    function, line = at(file, "def f():\n    pass"), at(file, "b = 2")
    text = changed(
        file,
        Instead(function, function, "\n\ndef f(x):\n    pass"),
        Instead(line, line, "b = 3"),
    )
    assert text == "a = 1\n\n\ndef f(x):\n    pass\n\nb = 3\n"


def test_a_decorator_goes_above_the_others(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("class A:\n    @b\n    def f(self):\n        pass\n")
    where = At(str(file), 3, 4)
    assert changed(file, Decorator(where, "g.h")) == (
        "class A:\n    @g.h\n    @b\n    def f(self):\n        pass\n"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# coding: latin-1\nmodel = '\xe4'\n", "UTF-8"),
        (b"model = 1\rmodel = 2\n", "line endings"),
        (b"\x0cmodel = 1\n", "form feeds"),
        (b"\xff\n", "UTF-8"),
    ],
)
def test_a_file_that_would_change_elsewhere_is_left_alone(
    content: bytes, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(content)
    with pytest.raises(CannotEdit, match=words):
        changed_sources([Below(At(str(file), 1, 0), "y = 1")])


def test_a_change_that_is_no_python_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("f((1\n   ))\n")
    with pytest.raises(CannotEdit, match=r"x\.py would be no Python"):
        changed_sources([Below(At(str(file), 1, 0), "x = = 2")])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""Doc."""\nfrom __future__ import annotations\n\nimport torch\nx = 1\nimport os\n', 4),
        ('"""Doc."""\nx = 1\n', 1),
        ("x = 1\n", 0),
    ],
)
def test_an_import_goes_below_the_first_imports(text: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(text)
    assert changed(file, Import(str(file), "import new")).split("\n")[line] == "import new"


def test_a_diff_is_for_the_folder_that_holds_all_files() -> None:
    assert folder_for(["/a/b/c.py", "/a/b/d/e.py"], "/a/b") == "/a/b"
    assert folder_for(["/a/b/c.py", "/a/x/e.py"], "/a/b") == "/a"


@pytest.mark.parametrize(
    ("before", "code", "after"),
    [
        ("é = f(\n    g(x),  # one\n    y,\n)\n", "g(x, z=1)", "é = f(\n    g(x, z=1),  # one\n    y,\n)\n"),
        ("if x:\n    g(x); h(x)\n", "pass", "if x:\n    pass\n    h(x)\n"),
        ("if x:\n    f(\n      g(x))\n", "g(\n        x)", "if x:\n    f(\n      g(\n        x))\n"),
    ],
)  # fmt: skip
def test_the_text_of_an_expression_or_of_a_statement_is_replaced(
    before: str, code: str, after: str, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(before, encoding="utf-8")
    change = Text(at(file, "g(x)"), at(file, "g(x)", end=True), code)
    assert changed(file, change) == after


def test_a_replaced_statement_keeps_the_comments_above_it(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "x = 1\n\n# Why.\n\n# It holds.\nassert x\n# Two.\ny = 2; z = 3\n", encoding="utf-8"
    )
    change = Text(at(file, "assert x"), at(file, "assert x", end=True), "check(x)")
    other = Text(at(file, "z = 3"), at(file, "z = 3", end=True), "z = 4")
    assert changed(file, change, other) == (
        "x = 1\n\n# Why.\n\n# It holds.\ncheck(x)\n# Two.\ny = 2\nz = 4\n"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import torch\n", ""),
        ("import math, torch\n", ""),
        ("import torch.nn\n", ""),
        ("import torch.nn as nn\n", "import torch"),
        ("from torch import nn\n", "import torch"),
        ("import math\n", "import torch"),
    ],
)
def test_a_file_gets_an_import_of_torch_if_it_has_none(
    text: str, code: str, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(text, encoding="utf-8")
    assert "".join(each.code for each in import_of_torch(str(file))) == code


def test_the_diff_of_a_long_file_keeps_the_lines_that_statements_were_moved_over(
    tmp_path: Path,
) -> None:
    """Lines that are in a long file often, such as empty ones, are common to both texts, too."""
    head = "".join(f"a{number} = 0\n\n" for number in range(120))
    loop = "for i in range(3):\n\n    if i:\n        print(i)\n\n    # Draw.\n    x = i\n\n"
    body = "    y = x\n    z = y\n"
    file = str(tmp_path / "long.py")
    after = f"{head}def step(x):\n{body}\n\n{loop}    step(x)\n"
    diff = unified({file: (f"{head}{loop}{body}", after)}, str(tmp_path))
    assert [line for line in diff.splitlines() if line[:1] == "-"][1:] == [
        "-    y = x",
        "-    z = y",
    ]
