"""The list of formats: the command line, the modules and the docs agree with it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from graphdoctor.cli import make_parser
from graphdoctor.cli.output import FormatAndFile
from graphdoctor.reporters.formats import FORMATS, Format, Kind, names_of
from graphdoctor.reporters.saved import _TYPES
from graphdoctor.values.file_kinds import _KINDS as SAVED

ROOT = Path(__file__).parents[2]
NO_FORMAT = {"wording"}  # what the formats of a check share


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: f"{row.name} of {row.kinds[0]}")
def test_a_module_shows_the_kinds_of_its_row(row: Format) -> None:
    module = importlib.import_module(f"graphdoctor.reporters.{row.module}")
    value = next(iter(get_type_hints(getattr(module, row.function)).values()))
    if row.module != "plain_json":  # which writes any value
        assert {one.__name__ for one in get_args(value) or (value,)} == set(row.kinds)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_format_of_a_kind_stands_in_one_row(kind: Kind) -> None:
    names = names_of(kind)
    assert names and len(set(names)) == len(names)


def test_every_module_of_a_folder_of_formats_is_in_a_row() -> None:
    for folder in ("check", "diff"):
        files = {path.stem for path in (ROOT / "graphdoctor/reporters" / folder).glob("*.py")}
        rows = {row.module.partition(".")[2] for row in FORMATS if row.module.startswith(folder)}
        assert files - {"__init__"} - NO_FORMAT == rows


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("analyze", "Report"),
        ("run", "ProgramReport"),
        ("trace", "TraceReport"),
        ("check", "Check"),
        ("merge", "Check"),
        ("diff", "Changes"),
        ("audit", "AuditReport"),
    ],
)
def test_a_command_offers_the_formats_of_what_it_shows(command: str, kind: Kind) -> None:
    (commands,) = (
        one.choices for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction)
    )
    offered = []
    for action in commands[command]._actions:
        if isinstance(action.type, FormatAndFile):
            offered.append(action.type.formats)
        if action.dest == "output_format":
            offered.append(action.choices)
            assert action.default == names_of(kind)[0]
    assert offered and all(tuple(one) == names_of(kind) for one in offered)


def test_a_folder_of_traces_and_a_comparison_have_the_formats_of_a_trace() -> None:
    assert names_of("TraceReport") == names_of("FolderReport") == names_of("TraceComparison")


def test_every_saved_kind_that_report_shows_has_a_type() -> None:
    shown = {kind.name for _, kind in SAVED if "`graphdoctor report {0}`" in kind.use}
    assert shown == set(_TYPES)


def test_the_docs_name_every_format_of_a_check() -> None:
    page = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    section = page.partition("## Formats")[2].partition("\n## ")[0]
    assert [name for name in names_of("Check") if f"`{name}`" not in section] == []
