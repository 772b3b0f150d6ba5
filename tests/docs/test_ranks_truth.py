"""docs/ranks_truth.md is what benchmarks/data/ranks.json says, of every step that is listed."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_of_the_file() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "truth" / "ranks.py"))
    data = json.loads((ROOT / "benchmarks" / "data" / "ranks.json").read_text())
    assert (ROOT / "docs" / "ranks_truth.md").read_text() == "\n".join([*made["page"](data), ""])


def test_every_step_was_decided_by_emulated_ranks_and_by_two_gpus() -> None:
    source = (ROOT / "benchmarks" / "truth" / "ranks_scenarios.py").read_text()
    listed = {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    rows = json.loads((ROOT / "benchmarks" / "data" / "ranks.json").read_text())["steps"]
    assert {name for name, row in rows.items() if {"emulated", "gpus"} <= {*row}} == listed
    assert len(listed) >= 30
