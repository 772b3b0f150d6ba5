"""The pages of measurements are what the committed data say; each aim that was missed has its reason."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "benchmarks/pages"


def results(names: dict[str, Any]) -> str:
    machine = names["_machine_page"](names["jsonl"](next(names["RESULTS"].glob("*.jsonl"))))
    return f"{names['INTRODUCTION']}\n{machine}\n" + "\n".join(names["programs"]())


def prediction(names: dict[str, Any]) -> str:
    return "\n".join(names["_page"](json.loads(names["DATA"].read_text()))) + "\n"


@pytest.mark.parametrize("page", [results, prediction])
def test_a_page_is_made_of_the_committed_measurements(
    page: Callable[[dict[str, Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(PAGES), *sys.path])
    names = runpy.run_path(str(PAGES / f"{page.__name__}.py"))
    committed = (ROOT / f"docs/{page.__name__}.md").read_text(encoding="utf-8")
    assert page(names) == committed, "make results"


@pytest.mark.parametrize("page", ["accuracy", "trace_peers", "versions"])
def test_a_page_that_imports_no_package_is_written_as_committed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(PAGES), *sys.path])
    main = runpy.run_path(str(PAGES / f"{page}.py"))["main"]
    written = tmp_path / "page.md"
    main.__globals__.update(PAGE=written, ROOT=tmp_path)
    main()
    committed = ROOT / f"docs/{page.replace('_', '-')}.md"
    assert written.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), (
        "make results"
    )


def test_each_missed_aim_has_a_reason() -> None:
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    table = text.partition("### What missed its aim\n")[2].partition("\n### ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 1 and all(len(row) == 3 and all(row) for row in rows)
