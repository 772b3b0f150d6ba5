"""The pages of measurements are what the committed data say; each aim that was missed has its reason."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "benchmarks/pages"
MADE = """
import sys
sys.path.insert(0, "benchmarks/pages")
import {page}
{print}
"""
PRINTS = {
    "results": "print(results.INTRODUCTION, end=chr(10)); "
    "print(results._machine_page(results.jsonl(next(results.RESULTS.glob('*.jsonl'))))); "
    "print(chr(10).join(results.programs()), end='')",
    "prediction": "import json; "
    "print(chr(10).join(prediction._page(json.loads(prediction.DATA.read_text()))))",
}


@pytest.mark.parametrize("page", list(PRINTS))
def test_a_page_is_made_of_the_committed_measurements(page: str) -> None:
    code = MADE.format(page=page, print=PRINTS[page])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"), "make results"


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
