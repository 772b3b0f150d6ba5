"""Which expression of its line a finding is about, counted in characters."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
import torch

import graphdoctor
from graphdoctor.diagnose import diagnose as diagnose_module
from graphdoctor.diagnose.diagnose import columns_at
from graphdoctor.target.frames import locate
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Columns, Location

MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
{body}
        return x + 1
"""


def found_in(body: str, folder: Path) -> tuple[Finding, str]:
    """The only finding of a host read, and what its columns hold."""
    path = folder / f"net{abs(hash(body))}.py"
    path.write_text(MODEL.format(body=body), encoding="utf-8")
    linecache.checkcache()
    names: dict[str, type[torch.nn.Module]] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    report = graphdoctor.analyze(names["Net"](), torch.ones(4), device="emulated", strategies=())
    (finding,) = (one for one in report.findings if one.rule == "GD101")
    place, columns = finding.location, finding.columns
    assert place is not None
    line = path.read_text(encoding="utf-8").splitlines()[place.line - 1]
    return finding, line[columns.start - 1 : columns.end - 1] if columns is not None else ""


@pytest.mark.parametrize(
    ("body", "expression"),
    [
        ("        a = 1; x.sum().item(); b = 2", "x.sum().item()"),
        ("        ä = 'öü'; x.sum().item()", "x.sum().item()"),
        ("        x.sum().item(); x.max().item()", ""),  # two of them, so that neither is marked
        ("        a = float(\n            x.sum()\n        )", ""),  # over several lines
    ],
)
def test_the_expression_that_the_finding_is_about(
    body: str, expression: str, tmp_path: Path
) -> None:
    assert found_in(body, tmp_path)[1] == expression


def test_place_that_was_not_seen_here_has_no_columns() -> None:
    seen = locate().location
    assert seen is not None and columns_at(seen) is not None
    assert columns_at(Location(seen.file, seen.line, seen.function)) is None


@pytest.mark.parametrize(
    ("reach", "columns"),
    [
        (None, None),
        ((4, 4), None),
        ((6, 4), None),
        ((0, 4), Columns(1, 5)),
        ((7, 10), Columns(7, 10)),  # "ä" takes two bytes and one column
        ((4, 12), Columns(5, 12)),
        ((4, 13), None),  # the line break is no part of an expression
    ],
)
def test_columns_count_characters_of_a_reach_that_lies_in_the_line(
    reach: tuple[int, int] | None,
    columns: Columns | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "line.py"
    path.write_text("x = 'ä' + 1", encoding="utf-8")  # linecache ends it with a line break
    monkeypatch.setattr(diagnose_module, "bytes_of_expression", lambda place: reach)
    assert columns_at(Location(str(path), 1)) == columns
