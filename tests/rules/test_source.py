"""What the source around a place says."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.rules.causes.source import read_after_loop
from graphdoctor.values.locations import Location

LOOPS = """\
def step(rows):
    for row in rows:
        for item in row:
            total = item + 1
        {behind}
    return total
"""


@pytest.mark.parametrize(
    ("behind", "line"),
    [
        ("print(total)", 5),  # behind the innermost loop
        ("total = abs(total)", 5),
        ("print(row)", 6),
        ("total = 0", None),  # another one from there on
    ],
)
def test_a_name_is_read_behind_the_innermost_loop_until_it_is_bound_anew(
    behind: str, line: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(LOOPS.format(behind=behind), encoding="utf-8")
    found = read_after_loop(Location(str(file), 4), frozenset({"total"}))
    assert found == ({"total": line} if line else {})
