"""A recording on shapes only tells which values were assumed, and where these ended it."""

from __future__ import annotations

from pathlib import Path

from graphdoctor.diagnose.assemble import assumptions, cut_short
from graphdoctor.values.finding import Assumption
from graphdoctor.values.host_events import SYNCHRONIZE, AssumedValue, CutShort, HostEvent
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Recording
from tests.diagnose.test_diagnose import iteration, recording


def told(*events: HostEvent) -> Recording:
    return recording(iteration(0, (), events=events), iteration(1, (), events=events))


def assumed(value: str, place: Location | None = None) -> AssumedValue:
    return AssumedValue("aten.item", 0, place, value=value)


def test_what_was_assumed_is_told_once_with_its_line_in_the_order_of_the_step(
    tmp_path: Path,
) -> None:
    file = tmp_path / "net.py"
    file.write_text("def forward(x):\n    if x.any():\n        return x\n")
    place = Location(str(file), 2)
    found = assumptions(
        told(
            assumed("True", place),
            SYNCHRONIZE,
            assumed("0"),
            assumed("True", place),
        )
    )
    assert found == (
        Assumption("True", "aten.item", place, "if x.any():"),
        Assumption("0", "aten.item", None, ""),
    )


def test_where_an_assumption_ended_the_step_is_said_once() -> None:
    place = Location("/src/net.py", 7)
    ended = CutShort("IndexError", 0, place, error="index 3 is out of range")
    (said,) = cut_short(told(assumed("3", place), ended))
    assert "fails with what was assumed (index 3 is out of range" in said
    assert "in line 7 of net.py)" in said
    assert cut_short(told(assumed("3", place))) == ()
    assert assumptions(told(ended)) == ()
