"""What the source around a place says."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.rules.causes.source import kept_until
from graphdoctor.values.locations import Lines

STEP = """\
def train(rows, h):
    for row in rows:
        with scaled():
            out = model(row, h)
            loss = criterion(out)
        if smooth:
            loss = loss + penalty(out)
        {more}
        loss.backward()
        print(old)
"""


@pytest.mark.parametrize(
    ("more", "names", "kept"),
    [
        ("pass", ("out", "loss"), {}),
        ("h = head(out)", ("h", "loss"), {"h": 10}),  # line 4 reads it first
        ("total += loss", ("total", "out"), {"total": 10}),
        ("if odd: policy = act(out)", ("policy",), {"policy": 8}),  # the other steps keep it
        ("policy = act(out) if odd else None", ("policy",), {}),
        (
            "if odd: old = loss.detach()",
            ("old",),
            {"old": 10},
        ),  # line 10 reads it, and may be the backward pass
        ("if odd: policy = act(out)\n        else: raise ValueError", ("policy",), {}),
    ],
)
def test_a_name_that_a_step_may_read_before_it_binds_it_is_kept_until_it_is_complete(
    more: str, names: tuple[str, ...], kept: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "model.py"
    file.write_text(STEP.format(more=more), encoding="utf-8")
    assert kept_until(Lines(str(file), 3, 10), names) == kept
