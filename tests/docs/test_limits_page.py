"""docs/limits.md has every known hazard once, with a rule that exists or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphdoctor.rules import ALL_RULES

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [ABC]\d\d", line)
]
HAZARDS = [
    *(f"A{number:02}" for number in range(1, 50)),
    *(f"B{number:02}" for number in range(1, 18)), "B17b",
    *(f"B{number:02}" for number in range(18, 49)),
    *(f"C{number:02}" for number in range(1, 20)),
]  # fmt: skip


def test_every_hazard_has_one_row_in_order() -> None:
    assert [row[0] for row in ROWS] == HAZARDS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_rules_that_exist_or_a_reason(row: list[str]) -> None:
    _, what, found_by, otherwise = row
    assert what
    if found_by in ("none", "a note"):
        assert otherwise
    else:
        assert set(found_by.split(", ")) <= {rule.id for rule in ALL_RULES}


def test_every_rule_is_in_some_row() -> None:
    named = {rule for row in ROWS for rule in row[2].split(", ")}
    # A graph replayed in the step is the user's own, and safe: it only rules out another around it.
    assert {rule.id for rule in ALL_RULES} - named == {"GD118"}


def test_an_unused_number_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for effect in "123":
        numbers = [int(rule.id[2:]) for rule in ALL_RULES if rule.id[2] == effect]
        unused = set(range(min(numbers), max(numbers))) - set(numbers)
        assert all(f"GD{number}" in text for number in unused)
