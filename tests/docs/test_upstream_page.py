"""docs/upstream.md shows every bug of the manifest, each found before its fix and gone after it."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "benchmarks/pages"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [str(PAGES), *sys.path])
    return runpy.run_path(str(PAGES / "upstream.py"))


def test_the_page_is_what_the_data_say(made: dict[str, Any]) -> None:
    rows = made["jsonl"](made["DATA"])
    assert (ROOT / "docs/upstream.md").read_text(encoding="utf-8") == made["page"](rows)


def test_each_bug_of_the_manifest_is_found_before_its_fix_and_gone_after_it(
    made: dict[str, Any],
) -> None:
    manifest = ROOT / "benchmarks/truth/upstream/manifest.toml"
    known = tomllib.loads(manifest.read_text(encoding="utf-8"))
    bugs, alive = known["bug"], known["alive"]
    rows = {row["name"]: row for row in made["jsonl"](made["DATA"])}
    assert list(rows) == [bug["name"] for bug in [*bugs, *alive]]
    for bug in alive:
        row = rows[bug["name"]]
        assert row["step"] == bug["step"] and row["today"]["version"] == bug["today"]
        assert bug["rule"] in {rule for rule, _, _ in row["today"]["findings"]}, bug["name"]
    for bug in bugs:
        row = rows[bug["name"]]
        assert [row[when]["version"] for when in ("before", "after")] == [
            bug["before"],
            bug["after"],
        ]
        found = [{rule for rule, _, _ in row[when]["findings"]} for when in ("before", "after")]
        assert bug["rule"] in found[0] and bug["rule"] not in found[1], bug["name"]
