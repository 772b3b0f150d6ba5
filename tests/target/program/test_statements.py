"""Lines of code -> the statements that are the step, and what their names are."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest

from graphdoctor.target.program.names import Names
from graphdoctor.target.program.rebuild import NotRebuilt, rebuild, variables_of
from graphdoctor.target.program.statements import Span, block_of_with, extended, find_span

LOOP = """\
total = 0
for epoch in range(2):
    for x, y in batches:
        x = x + epoch
        start(x)
        if x > 1:
            out = step(x, y)
            total += out
            log(out)
    report(total)
"""


def code_of(tmp_path: Path, source: str, name: str = "<module>") -> CodeType:
    file = tmp_path / "program.py"
    file.write_text(source)
    code = compile(source, str(file), "exec")
    inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
    return inner[0] if inner else code


def span_of(code: CodeType, *lines: int) -> Span:
    span = find_span(code, lines, last_line=max(lines))
    assert span is not None
    return span


def test_the_span_is_the_innermost_block_that_holds_all_lines(tmp_path: Path) -> None:
    code = code_of(tmp_path, LOOP)
    inner = span_of(code, 7, 8)
    assert (inner.first_line, inner.last_line, len(inner.around)) == (7, 8, 3)
    outer = span_of(code, 5, 8)
    assert (outer.first_line, len(outer.statements), len(outer.around)) == (5, 2, 2)
    assert [outer.position(line) for line in (4, 5, 7, 9, 10)] == [None, 0, 1, 1, None]


def test_what_follows_the_last_line_in_its_branch_is_left_out(tmp_path: Path) -> None:
    *_, last = span_of(code_of(tmp_path, LOOP), 5, 8).statements
    assert [each.lineno for each in last.body] == [7, 8]  # type: ignore[attr-defined]


def test_names_that_the_program_binds_for_each_step_vary_and_those_of_the_step_are_carried(
    tmp_path: Path,
) -> None:
    variables = variables_of(span_of(code_of(tmp_path, LOOP), 5, 8))
    assert variables.varying == ("x", "y")
    assert variables.carried == ("total",)
    assert variables.fixed == ("start", "step")


def test_a_rebuilt_step_runs_its_lines_and_leaves_the_file_s_names_alone(tmp_path: Path) -> None:
    code = code_of(tmp_path, LOOP)
    span = span_of(code, 7)
    seen: list[int] = []
    namespace = {"step": lambda x, y: seen.append(x) or x * y, "out": "as it was"}
    made = rebuild(
        span, variables_of(span), {"x": 2, "y": 3}, inputs=("x", "y"), namespace=namespace
    )
    made.step(x=4, y=5)
    assert seen == [4] and namespace["out"] == "as it was"
    assert made.step.__code__.co_filename == code.co_filename
    assert made.step.__code__.co_firstlineno == 7


def test_a_step_of_a_function_changes_copies_of_its_variables(tmp_path: Path) -> None:
    source = "def train(n):\n    for i in range(n):\n        n = n + i\n        total += n\n"
    code = code_of(tmp_path, source, "train")
    span = span_of(code, 3, 4)
    made = rebuild(span, variables_of(span), {"n": 10, "i": 1, "total": 5}, inputs=(), namespace={})
    made.step()
    assert made.cells["total"].cell_contents == 16


def test_a_counter_that_the_program_resets_is_state_unless_each_step_is_given_it(
    tmp_path: Path,
) -> None:
    """A replay that leaves it as it was is a remark, as for a counter that nobody resets."""
    source = """\
def train(n, seen):
    for i in range(n):
        y = 2 * i
        seen += y
        if i % 8 == 0:
            print(seen, y)
            seen = 0
"""
    span = span_of(code_of(tmp_path, source, "train"), 3, 4)
    values = {"i": 3, "seen": 5}
    made = rebuild(span, variables_of(span), values, inputs=("i",), namespace={})
    assert made.step(i=3) == {"y": 6} and made.cells["seen"].cell_contents == 11
    given = rebuild(span, variables_of(span), values, inputs=("i", "seen"), namespace={})
    assert given.step(i=3, seen=5) == {"seen": 11, "y": 6}


def test_continue_ends_a_rebuilt_step(tmp_path: Path) -> None:
    source = "for i in data:\n    if i:\n        continue\n    out.append(i)\n"
    span = span_of(code_of(tmp_path, source), 2, 4)
    out: list[int] = []
    made = rebuild(span, variables_of(span), {"i": 0}, inputs=("i",), namespace={"out": out})
    made.step(i=1)
    made.step(i=0)
    assert out == [0]


@pytest.mark.parametrize(
    ("line", "why"),
    [("x = yield x", "yields"), ("x = super().run(x)", "super"), ("x = self.__run(x)", "private")],
)
def test_what_cannot_run_by_itself_is_refused_with_the_reason(
    tmp_path: Path, line: str, why: str
) -> None:
    code = code_of(tmp_path, f"def f(self, x):\n    {line}\n", "f")
    with pytest.raises(NotRebuilt, match=why):
        variables_of(span_of(code, 2))


def test_a_span_reaches_back_to_where_a_name_is_bound(tmp_path: Path) -> None:
    span = span_of(code_of(tmp_path, LOOP), 5)
    longer = extended(span, "x")
    assert longer is not None and longer.first_line == 4
    assert extended(longer, "x") is None


def test_a_with_statement_s_body_is_a_marked_step(tmp_path: Path) -> None:
    source = "for x in data:\n    with step():\n        a = x\n        b = a\n    print(b)\n"
    span = block_of_with(code_of(tmp_path, source), 2)
    assert span is not None and (span.first_line, span.last_line) == (3, 4)
    assert variables_of(span).returned == ("b",)


def test_names_are_read_in_the_order_in_which_they_run() -> None:
    import ast

    source = "a = b\nfor i in c:\n    d = a\nif e:\n    f = 1\nelse:\n    f = g\nh = [k + f for k in d]\n"
    names = Names(ast.parse(source).body)
    assert names.early == {"b", "c", "e", "g"}
    assert names.stored == {"a", "i", "d", "f", "h"}


def test_a_side_that_leaves_does_not_bind_for_what_is_below() -> None:
    import ast

    source = "if a:\n    x = 1\nelif b:\n    x = 2\nelse:\n    raise ValueError\n"
    assert Names(ast.parse(source).body).sure == {"x"}
    assert Names(ast.parse(source.replace("raise ValueError", "print()")).body).sure == set()
    assert Names(ast.parse("if a:\n    continue\nelse:\n    x = 1\n").body).sure == {"x"}


def test_all_statements_of_a_line_belong_to_the_step(tmp_path: Path) -> None:
    source = "for x in data:\n    a = f(x)\n    g(); h(a); i()\n    j()\n"
    assert len(span_of(code_of(tmp_path, source), 2, 3).statements) == 4
